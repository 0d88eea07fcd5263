"""Population based training: generations of tasks, of which the worst give way to warm clones of the best.

A place of the population has one task after another. What became of a generation is worked out from the study (who had
which place since when) and the store (what each came to at the generation's end), and worked out again after a stop: so
clones are made first, while those they begin with rest, and only then may anybody go on.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.control.daemon import cloning
from dovetail.control.searching.generations import MemberTrial, choose_parents, keyed
from dovetail.control.searching.suggesting import suggest_parameters
from dovetail.control.searching.trial_book import TrialBook
from dovetail.control.state import State
from dovetail.control.task_source import Promotion, Prune, Wish
from dovetail.metrics.progress import ENDED
from dovetail.store import checkpoints_of
from dovetail.vocabulary import CheckpointError, InvalidWorkload, Population, Stop, Task

if TYPE_CHECKING:
    import optuna

# What a trial of the study says of a member: its place, the generation since which it has it, the number of its
# parent's trial and the step at which it was cloned, and the digest of the weights that it begins with.
_PLACE, _SINCE, _PARENT, _STEP, _WEIGHTS = "place", "generation", "parent", "parent_step", "begins_with"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breed:
    """One task of a population: its place, since when it has that, and the parameters that were suggested for it."""

    task: Task
    place: int
    since: int
    number: int
    suggested: Mapping[str, Any]


class Breeding:
    """Asks for the tasks of a population, generation by generation."""

    def __init__(self, state: State, *, book: TrialBook) -> None:
        rule = book.search.sampler
        assert isinstance(rule, Population)
        self._state, self._ledger, self._book, self._rule = state, state.ledger, book, rule
        self._members: dict[tuple[int, int], Breed] = {}  # by place and since when
        self._generation, self._is_resumed = 1, False

    def wishes(self) -> Iterator[Wish]:
        """Begin the first generation; then end each as soon as all have come to its end."""
        if not self._is_resumed:
            self._is_resumed = True
            yield from self._resume()
        for place in range(self._book.search.count):
            if (place, 0) not in self._members:
                yield from self._begin(place)
        while (last := self._last_step()) is not None and self._generation * self._rule.every_steps < last:
            values = self._values()
            if values is None:
                return
            yield from self._end_generation(values, last)
            self._generation += 1

    def _resume(self) -> Iterator[Wish]:
        for frozen in self._book.study.get_trials(deepcopy=False):
            if _PLACE in frozen.user_attrs:
                yield from self._take_up(frozen)

    def _begin(self, place: int) -> Iterator[Wish]:
        yield from self._add(MemberTrial(self._rule, keyed(self._rule, 0, place), {}), {_PLACE: place, _SINCE: 0})

    def _add(self, suggesting: MemberTrial, words: dict[str, Any]) -> Iterator[Wish]:
        """A new trial, in one record: it is in the study with all that is known of it, or not at all."""
        import optuna

        suggest_parameters(self._book.search, suggesting)
        self._book.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=suggesting.params,
                distributions=suggesting.distributions,
                user_attrs=words,
            )
        )
        yield from self._take_up(self._book.study.get_trials(deepcopy=False)[-1])

    def _take_up(self, frozen: "optuna.trial.FrozenTrial") -> Iterator[Wish]:
        """A trial of the study as a member, whose task is submitted unless it is on record."""
        import optuna

        search, words = self._book.search, frozen.user_attrs
        how: dict[str, Any] = {"begins_with": words.get(_WEIGHTS, ""), "stop": self._stop(words[_SINCE])}
        is_open = frozen.state == optuna.trial.TrialState.RUNNING
        if is_open:
            task = self._book.take_up(optuna.Trial(self._book.study, frozen._trial_id), **how)
            self._book.catch_up(task, frozen.intermediate_values)
        else:
            task = search.task(frozen.number, suggest_parameters(search, frozen), **how)
            self._check_known(task)
        member = Breed(
            task=task, place=words[_PLACE], since=words[_SINCE], number=frozen.number, suggested=dict(frozen.params)
        )
        self._members[member.place, member.since] = member
        if not is_open or task.identity in self._state.tasks:
            return
        if _PARENT in words:
            self._keep_weights(member, parent=words[_PARENT])
        parent = next((each.task.name for each in self._members.values() if each.number == words.get(_PARENT)), "")
        yield from self._book.submission(task, of=parent, step=words.get(_STEP, 0))

    def _check_known(self, task: Task) -> None:
        if not self._ledger[task.identity].attempt and self._ledger[task.identity].status == "pending":
            raise InvalidWorkload(
                f"a population must have the program and the space that it began with; {task.name!r} was of others. "
                f"Begin anew with fresh=True (--fresh), or give the search another name."
            )

    def _keep_weights(self, member: Breed, *, parent: int) -> None:
        """Keep what a clone begins with under its own name, whatever becomes of the original."""
        store = self._ledger.store
        assert store.home is not None
        (other,) = (each for each in self._members.values() if each.number == parent)
        checkpoint, _ = self._saved(other)
        if cloning.digest_of(checkpoint) != member.task.begins_with:
            raise CheckpointError(
                f"{other.task.name!r} must still have the checkpoint with which {member.task.name!r} begins; it has "
                f"another. Begin anew with fresh=True (--fresh)."
            )
        cloning.keep(checkpoint, checkpoints_of(store.home) / member.task.identity)

    def _saved(self, member: Breed) -> tuple[Any, int]:
        found = cloning.last_saved(self._ledger.store, member.task.identity)
        if found is None:
            raise CheckpointError(f"{member.task.name!r} must have a checkpoint to be cloned from; it has none.")
        return found

    # The end of a generation

    def _last_step(self) -> int | None:
        """How long a place trains, once that is known."""
        stop = self._book.search.stop
        if stop.steps is not None:
            return stop.steps
        known = [found for each in self._members.values() if (found := self._ledger[each.task.identity].fingerprint)]
        return stop.last_step(known[0].steps_per_epoch) if known else None

    def _stop(self, since: int) -> Stop:
        """When a task ends that has its place since this generation: with the others."""
        stop, last = self._book.search.stop, self._last_step()
        if not since:
            return stop
        assert last is not None
        return dataclasses.replace(stop, steps=last - since * self._rule.every_steps, epochs=None)

    def _current(self) -> list[Breed]:
        """Who has each place in the generation that is under way."""
        newest: dict[int, Breed] = {}
        for (place, since), member in sorted(self._members.items()):
            if since < self._generation:
                newest[place] = member
        return list(newest.values())

    def _values(self) -> dict[int, float] | None:
        """What each place came to at the generation's end; None while some are not there."""
        found: dict[int, float] = {}
        for member in self._current():
            one = self._ledger[member.task.identity]
            step = self._step_of(member)
            is_there = one.status == "resting" and one.step == step
            if step in one.judged:
                found[member.place] = one.judged[step]
            elif is_there or one.status == "finished":
                found[member.place] = one.metrics.get(self._book.search.metric, math.nan)
            elif one.status in ENDED:
                found[member.place] = math.nan
            else:
                return None
        return found

    def _step_of(self, member: Breed) -> int:
        """The step at which a member ends the generation that is under way."""
        return (self._generation - member.since) * self._rule.every_steps

    def _end_generation(self, values: Mapping[int, float], last: int) -> Iterator[Wish]:
        goal, metric = self._book.search.goal or "max", self._book.search.metric
        parents = choose_parents(values, self._rule, goal=goal, generation=self._generation)
        members = {member.place: member for member in self._current()}
        for place, other in parents.items():
            if (place, self._generation) not in self._members:
                yield from self._clone(place, members[other])
        for place, member in members.items():
            task, one = member.task.identity, self._ledger[member.task.identity]
            if one.status != "resting" or self._step_of(member) in one.judged:
                continue
            if place not in parents:
                yield Promotion(task=task, metric=metric, value=values[place])
                continue
            better = members[parents[place]]
            reason = f"a clone of {better.task.name} took its place: {metric} {values[better.place]:.4g}"
            yield Prune(task=task, reason=reason, metric=metric, value=values[place])

    def _clone(self, place: int, other: Breed) -> Iterator[Wish]:
        checkpoint, step = self._saved(other)
        words: dict[str, Any] = {_PLACE: place, _SINCE: self._generation, _PARENT: other.number, _STEP: step}
        words[_WEIGHTS] = cloning.digest_of(checkpoint)
        generator = keyed(self._rule, self._generation, place)
        generator.random()  # has chosen the parent
        yield from self._add(MemberTrial(self._rule, generator, other.suggested), words)
