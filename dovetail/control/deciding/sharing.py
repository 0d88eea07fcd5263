"""Deciding by rounds: a policy says what part of the time each task is due, and rounds turn that into who runs now.

Arrivals and ends count from the next round on. Who has the same devices in two rounds running just goes on: its lease
is extended. Who has to leave saves first, and starts anew on its next devices once they are free, so nobody moves more
than once a round. Rounds in which nothing could change are not held.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator

from dovetail.control.deciding.base import Deciding
from dovetail.control.deciding.claims import Claims
from dovetail.control.deciding.outlook import Outlook, find_turns, of_running, of_waiting
from dovetail.control.state import Running, State
from dovetail.planning import Problem, check, check_promises
from dovetail.planning.share.policies import POLICIES, Policy
from dovetail.planning.share.rounds import Gang, Received, Rota, Round, after, carry_over
from dovetail.planning.share.rounds import without as without_tasks
from dovetail.vocabulary import Allocation, Entity, InvalidWorkload, Option, Placement, TaskId
from dovetail.vocabulary.events import ClusterShared

# What a task is behind with under one allocation counts under the next, up to so many rounds.
_OWED_ROUNDS = 2
# Rounds begin at multiples of their length, which are sums of floats.
_INSTANT = 1e-6
# A share that is nearer than this to all of a task's time is all of it.
_ALL = 3e-5

Placed = dict[tuple[TaskId, ...], str]
"""Orders by their tasks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharing:
    """How a cluster is shared: by which policy, in rounds of what length, how soon after one allocation the next may be
    made, and between which `entities`, for policies that ask. `checked` has every round pass `check`; a simulation of
    years may do without. `prompt` begins a round early where something changed and devices idle.

    >>> Sharing(policy=POLICIES["max_min_fairness"]).round_seconds
    360.0
    """

    policy: Policy
    round_seconds: float = 360.0
    least_seconds_between: float = 0.0
    checked: bool = True
    prompt: bool = False
    entities: tuple[Entity, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.round_seconds < math.inf:
            raise InvalidWorkload(f"a round must last longer than 0 s, got {self.round_seconds}.")

    def __call__(self, state: State) -> "Rounds":
        """The way of deciding, for a controller."""
        return Rounds(state, sharing=self)


class Rounds(Deciding):
    """Who runs in each round."""

    def __init__(self, state: State, *, sharing: Sharing) -> None:
        self._state, self._sharing = state, sharing
        self._claims = Claims(
            state,
            round_seconds=sharing.round_seconds,
            entities=sharing.entities,
            equal_split=sharing.policy is POLICIES["finish_time_fairness"],
        )
        self._next = self._began = state.began
        self._because, self._decided_at, self._is_changed = "", -math.inf, False
        self._steady = False
        self._problem: Problem | None = None
        self._rota: Rota | None = None
        self._made: Round | None = None
        self._before: tuple[Gang, ...] = ()
        self._gangs: dict[str, Gang] = {}
        self._allocation, self._received = Allocation(shares=()), Received()
        self._coming: list[Gang] = []
        self._leaving: dict[str, str] = {}
        self._told: set[str] = set()
        self._freed = False
        # What is said of those who wait in this round, and until when that lasts.
        self._waiting: dict[TaskId, Outlook] | None = None
        self._waiting_until = 0.0

    def renew(self, because: str) -> None:
        """From the next round on this counts."""
        self._because, self._is_changed = self._because or because, True
        at_once = self._sharing.prompt and self._state.queues.idles()
        now = self._state.now()
        self._next = now if at_once else min(self._next, self._boundary(now))

    def ready(self) -> list[Placement]:
        """At the beginning of a round those who have a turn; later those who waited for somebody to leave."""
        if self._state.now() >= self._next - _INSTANT:
            self._hold()
        if not (self._coming and self._freed):
            return []
        self._freed, running = False, self._state.running
        # Who goes on is not among those who come; who was told to leave may not be gone yet.
        leaving = [running[name].tasks for name in (*self._told, *self._leaving) if name in running]
        busy = set[TaskId]().union(*leaving)
        queues, started, rest = self._state.queues, [], []
        for gang in self._coming:
            if busy.isdisjoint(gang.tasks) and queues.fits(gang.devices, gang.option):
                queues.occupy(gang.devices, gang.option)
                started.append(self._placement(gang))
            else:
                rest.append(gang)
        self._coming = rest
        return started

    def unwanted(self) -> Iterator[tuple[str, str]]:
        """Who has to leave now."""
        leaving, self._leaving = self._leaving, {}
        self._told |= leaving.keys()
        yield from leaving.items()

    def freed(self, running: Running, *, taken_seconds: float) -> str:
        """Devices that fall free go to who waits for them, or are given away in the next round."""
        self._freed = True
        if running.order.name in self._told:
            self._told.remove(running.order.name)
            return ""  # as decided; where a member of its gang has ended, that was said when it did
        return "a placement ended"

    def ended(self, task: TaskId) -> str:
        """What it was due is due to others from the next round on."""
        return "a task ended"

    def wake_seconds(self) -> float:
        """When the next round begins."""
        return self._next

    def outlook(self) -> dict[TaskId, Outlook]:
        """As the shares and the rounds to come have it."""
        if self._rota is None or self._made is None:
            return {}
        state, made = self._state, self._made
        running = {task: each for each in state.running.values() if each.placement for task in each.tasks}

        def steps(tasks: Iterable[TaskId]) -> dict[TaskId, int]:
            return {task: self._claims.steps(task, running.get(task)) for task in tasks if task in state.tasks}

        if self._waiting is None or self._waiting_until != self._next:
            # Where thousands wait this takes a moment, and it holds as long as the round.
            self._waiting_until = self._next
            self._waiting = of_waiting(
                state,
                self._allocation,
                made=made,
                turns=find_turns(self._rota, self._received, made),
                next_seconds=self._next,
                steps=steps(made.waiting),
            )
        now = steps(task for gang in made.gangs for task in gang.tasks)
        return self._waiting | of_running(self._allocation, made=made, before=self._before, steps=now, now=state.now())

    # A round

    def _hold(self) -> None:
        """Begin a round: who goes on, who comes, who leaves, and when the next one is."""
        now, seconds = self._state.now(), self._sharing.round_seconds
        self._waiting = None
        if self._made is not None:
            self._received = after(self._received, self._made, seconds=now - self._began)
        self._began = now
        is_due = now - self._decided_at >= self._sharing.least_seconds_between
        if self._because and (is_due or self._is_changed):
            self._decide(now, is_due=is_due)
        placed = self._placed()
        self._before = self._previous(placed)
        if self._rota is None:
            self._made = Round(gangs=(), waiting=(), moved=0, seconds=seconds)
        else:
            self._made = self._rota.next(received=self._received, previous=self._before, round_seconds=seconds)
        if self._sharing.checked and self._problem is not None:
            check(self._made.schedule(self._problem), self._state.cluster)
            check_promises(self._made.schedule(self._problem), self._problem)
        self._turn_over(self._made, placed)
        settled = self._steady and not (self._made.waiting or self._because)
        self._next = math.inf if settled else now + seconds

    def _decide(self, now: float, *, is_due: bool) -> None:
        """Ask the policy, with what tasks are behind carried over; or, too soon after it was last asked, go on with
        what is left of its answer."""
        sharing = self._sharing
        self._problem, self._is_changed = self._state.placeable(self._claims.problem(anew=is_due)), False
        if not self._problem.families:
            self._rota, self._steady, self._because = None, True, ""
            self._allocation, self._received = Allocation(shares=()), Received()
            return
        here = {member.task for family in self._problem.families for member in family.members}
        gone = {task for group in self._allocation.groups for task in group if task not in here}
        self._allocation = without_tasks(self._allocation, gone) if gone else self._allocation
        if is_due:
            most = _OWED_ROUNDS * sharing.round_seconds
            self._received = carry_over(self._received, self._allocation, most_seconds=most)
            self._allocation = sharing.policy(self._problem)
            self._steady = _is_steady(self._allocation)
            self._record(now)
            self._because, self._decided_at = "", now
        self._rota = Rota(self._problem, self._allocation, before=self._rota)

    def _record(self, now: float) -> None:
        found, state = self._allocation, self._state
        shared = ClusterShared(
            at_seconds=now,
            workload=state.workload.name,
            because=self._because,
            tasks=sum(map(len, found.groups)),
            value=found.value,
            bound=found.bound,
        )
        state.ledger.record([shared])

    def _placed(self) -> Placed:
        """What runs and was not told to leave."""
        found: Placed = {}
        gangs, known = {}, self._gangs
        for name, running in self._state.running.items():
            placement = running.placement
            if placement is not None:
                gangs[name] = known.get(name) or Gang(placement.tasks, placement.option, placement.devices, -1)
                if name not in self._told:
                    found[placement.tasks] = name
        self._gangs = gangs
        return found

    def _previous(self, placed: Placed) -> tuple[Gang, ...]:
        """The gangs of which all still run, under the names that their families have now."""
        ledger, gangs = self._state.ledger, self._gangs
        found = [
            gangs[name]
            for tasks, name in placed.items()
            if self._state.is_there(gangs[name].devices)
            and (len(tasks) == 1 or all(ledger[task].status == "running" for task in tasks))
        ]
        if self._claims.names:
            return tuple(gang._replace(option=self._renamed(gang.option, gang.tasks)) for gang in found)
        return tuple(found)

    def _renamed(self, option: Option, tasks: tuple[str, ...]) -> Option:
        names = self._claims.names
        families = tuple(names.get(task, family) for task, family in zip(tasks, option.families, strict=True))
        return option if families == option.families else dataclasses.replace(option, families=families)

    def _turn_over(self, made: Round, placed: Placed) -> None:
        """Who goes on, who comes, and who leaves."""
        self._coming, self._freed = [], True
        gangs = self._gangs
        for gang in made.gangs:
            name = placed.get(gang.tasks)
            if name and _goes_on(gangs[name], gang):
                del placed[gang.tasks]
                gangs[name] = gang
            else:
                self._coming.append(gang)
        turns = {task for gang in self._coming for task in gang.tasks}
        for tasks, name in placed.items():
            self._leaving[name] = "its turn is over" if turns.isdisjoint(tasks) else "its next turn is elsewhere"

    def _placement(self, gang: Gang) -> Placement:
        steps = tuple([self._state.steps(task) for task in gang.tasks])
        return gang.place(steps, seconds=gang.option.seconds(steps))

    def _boundary(self, now: float) -> float:
        """When the round after this moment begins."""
        began, seconds = self._state.began, self._sharing.round_seconds
        return began + math.ceil((now - began - _INSTANT) / seconds) * seconds


def _goes_on(before: Gang, gang: Gang) -> bool:
    """Whether the same tasks run as they did, where they did; their families may have other names by now."""
    if before is gang:
        return True
    if before.devices != gang.devices:
        return False
    one, other = before.option, gang.option
    ways = [(each.technique, each.kind, each.count, each.knobs) for each in (one, other)]
    return one is other or ways[0] == ways[1]


def _is_steady(allocation: Allocation) -> bool:
    """Whether every task has all of its time on one option, so that no round differs from another."""
    seen: set[int] = set()
    for share in allocation.shares:
        if len(share.groups) > 1 or share.groups[0] in seen:
            return False
        seen.add(share.groups[0])
        if abs(share.share - len(allocation.groups[share.groups[0]])) > _ALL:
            return False
    return len(seen) == len(allocation.groups)
