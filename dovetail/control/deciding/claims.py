"""What each task may claim of a shared cluster: the problem that policies read."""

import dataclasses
import math

from dovetail.control.state import Running, State
from dovetail.metrics.progress import Progress
from dovetail.planning import Problem
from dovetail.planning.fitting import are_there
from dovetail.planning.share.columns import columns
from dovetail.vocabulary import Entity, FamilyKey, Member, TaskId


class Claims:
    """The tasks that can run now, with what is left of them, their age, priority and deadline. Entities that were not
    told of before weigh 1.

    Where `equal_split`, also how long what they have done would have taken on an equal split of the cluster, which
    finish-time fairness compares with; it takes a moment, so only that policy asks for it.
    """

    def __init__(
        self,
        state: State,
        *,
        round_seconds: float = 0.0,
        entities: tuple[Entity, ...] = (),
        equal_split: bool = False,
    ) -> None:
        self._state, self._equal_split = state, equal_split
        self._round_seconds, self._entities = round_seconds, entities
        self.names: dict[str, str] = {}
        self._named = {entity.name for entity in entities}
        self._members: dict[str, Member] = {}
        # By task: seconds on an equal split so far, its rate there, and the steps that were left when that was counted.
        self._isolated: dict[str, tuple[float, float, float]] = {}

    def problem(self, *, anew: bool = True) -> Problem:
        """Everything that runs or could run, as of now; unless `anew`, those who were there when it was last asked for
        stand as they stood then."""
        state, now = self._state, self._state.now()
        members: dict[str, Member] = {}
        offers = state.offers()
        running = {task: each for each in state.running.values() if each.placement for task in each.placement.tasks}
        families: dict[FamilyKey, list[Member]] = {}
        self.names, kept = {}, 0
        for place, (task, one) in enumerate(state.known()):
            if one.status not in ("pending", "running") or one.paused or state.recovery.waits(task):
                continue
            assert one.fingerprint is not None
            family = one.fingerprint.family
            if state.has_cpus:
                kept = offers.kept(family, state.kept(one))
            key = FamilyKey(family=family, threads=kept, approximate=offers.goes_on(family, state.began_with(one)))
            if key.is_limited:
                self.names[task] = str(key)
            # What it would have had on an equal split is counted each time that this changes.
            member = None if anew or self._equal_split else self._members.get(task)
            members[task] = member = member or self._member(task, one, running.get(task), now, place)
            families.setdefault(key, []).append(member)
        self._members = members
        unknown = {one.entity for one in members.values() if one.entity}.difference(self._named)
        found = offers.problem(
            families,
            cluster=state.cluster,
            round_seconds=self._round_seconds,
            entities=(*self._entities, *(Entity(name=name) for name in sorted(unknown))),
        )
        if not state.is_whole:
            found = _possible(found)
        if self._equal_split:
            self._note_equal_rates(found)
        return found

    def steps(self, task: TaskId, running: Running | None) -> int:
        """How many steps a task has before it."""
        return max(1, math.ceil(self._left(task, self._state.ledger[task], running, self._state.now())))

    def _member(self, task: TaskId, one: Progress, running: Running | None, now: float, place: int) -> Member:
        left = self._left(task, one, running, now)
        return Member(
            task=task,
            steps=max(1, math.ceil(left)),
            weight=one.priority,
            age_seconds=now - (self._state.began if one.submitted_seconds is None else one.submitted_seconds),
            isolated_seconds=self._count(task, left) if self._equal_split else 0.0,
            deadline_seconds=one.deadline_seconds - now,
            entity=one.entity,
            place=place,
        )

    def _left(self, task: TaskId, one: Progress, running: Running | None, now: float) -> float:
        until, _ = self._state.target(task)
        if running is None or one.status != "running":
            return until - one.saved_step
        if one.steps_per_second:
            return until - one.step
        assert running.placement is not None
        option = running.placement.option
        seconds = option.step_seconds[running.placement.tasks.index(task)]
        return until - one.step - max(0.0, now - running.started_at - option.start_seconds) / seconds

    def _count(self, task: TaskId, left: float) -> float:
        total, rate, counted = self._isolated.get(task, (0.0, 0.0, left))
        total += (counted - left) / rate if rate > 0 else 0.0
        self._isolated[task] = (total, rate, left)
        return total

    def _note_equal_rates(self, problem: Problem) -> None:
        if not problem.families:
            return
        arrays = columns(problem)
        here: dict[str, tuple[float, float, float]] = {}
        for group, rate in zip(arrays.members, arrays.equal_split_rates().tolist(), strict=True):
            for member in group:
                total, _, left = self._isolated[member.task]
                here[member.task] = (total, rate, left)
        self._isolated = here


def _possible(problem: Problem) -> Problem:
    """The problem less the options that no node has the devices for just now, and the tasks that are left with none:
    they wait."""
    options = tuple(are_there(problem.options, problem.cluster))
    able = {option.families[0] for option in options if len(option.families) == 1}
    families = tuple(family for family in problem.families if family.name in able)
    options = tuple(option for option in options if able.issuperset(option.families))
    return dataclasses.replace(problem, families=families, options=options)
