"""What the loop knows: the tasks, where each stands, what runs; and the problem that planners are shown of it.

Shared by the loop and by its way of deciding; the loop alone writes to it.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.control import halving
from dovetail.control.settings import Settings
from dovetail.control.state.ledger import Ledger
from dovetail.control.state.queues import Queues
from dovetail.control.state.recovery import Recovery
from dovetail.control.state.shard_tours import (
    Find,
    Probe,
    ShardPlaces,
    evaluation_tour,
    needs_tour,
    tour_of,
)
from dovetail.control.state.snapshot import Offers, Waiting, snapshot, unplaceable, without
from dovetail.engines import Order
from dovetail.metrics.progress import Progress
from dovetail.planning import Problem, derive_options, spec_of
from dovetail.planning.hopping import unvisitable
from dovetail.planning.problem import ShardTour
from dovetail.store import Store
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    FrozenDict,
    Objective,
    Option,
    Placement,
    Plan,
    Profile,
    Task,
    TaskId,
    Workload,
)
from dovetail.vocabulary.approximations import Approximate, combinations
from dovetail.vocabulary.events import TaskFailed, TaskHeld
from dovetail.vocabulary.work import name_tasks


@dataclasses.dataclass(kw_only=True)
class Running:
    """An order under way; one that measures has no placement. One that has `vacated_at` a moment holds no devices any
    more, and what it has learned is being saved."""

    order: Order
    option: Option | None
    placement: Placement | None
    started_at: float
    vacated_at: float | None = None

    @functools.cached_property
    def tasks(self) -> frozenset[TaskId]:
        """The tasks that it trains or measures."""
        return frozenset([member.task.identity for member in self.order.members])


class State:
    """Where a workload stands on a cluster.

    >>> from dovetail.vocabulary import Kind, Program, Stop
    >>> task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> workload = Workload(name="one", tasks=(task,))
    >>> State(workload, cluster=cluster, store=Store(None, write=True), settings=Settings(), now=lambda: 0.0).pending()
    True
    """

    def __init__(
        self,
        workload: Workload,
        *,
        cluster: Cluster,
        store: Store,
        settings: Settings,
        now: Callable[[], float],
        offers: Offers | None = None,
        find: Find = lambda paths: None,
        probe: Probe = lambda readers: None,
        may_grow: bool = False,
    ) -> None:
        self._places = ShardPlaces(find, probe)
        self.cluster, self.settings, self.now = cluster, settings, now
        self._workload, self._is_outdated = workload, False
        self.tasks: dict[TaskId, Task] = {task.identity: task for task in workload.tasks}
        self.ledger = Ledger(store, now=now)
        self.ledger.hide(workload.tasks, judged_by=workload.halving.metric if workload.halving else None)
        self.running: dict[str, Running] = {}
        self.queues = Queues(cluster)
        self.recovery = Recovery(
            self.ledger,
            now=now,
            kind_of=lambda device: self._whole.device(device).kind,
            retries=settings.retries,
            exact=settings.exact,
        )
        self.plans: list[tuple[float, Plan]] = []
        self.began = now()
        self.trouble = ""  # why no decision could be made of late
        self.is_measuring = False  # whether something is still to be learned of tasks
        # How many more tasks a search will ask for; None where that is not known.
        self.to_come: int | None = None
        self._is_closed = False
        self._whole, self._gone = cluster, set[str]()
        self.may_grow = may_grow
        self._processors = {device.name: cluster.kind(device.kind).processor for device in cluster.devices}
        self._offers, self.measures = offers, offers is None  # what is given need not be measured
        self._measured: tuple[object, ...] = ()
        self._unended: set[TaskId] = set()
        self._known: dict[TaskId, Progress] = {}
        self._seen, self._new = 0, dict[TaskId, None]()

    @property
    def workload(self) -> Workload:
        """What is to be trained, with the tasks there are by now. Made anew when it is looked at, not with every task
        that comes: it looks at all of them."""
        if self._is_outdated:
            present = {task.name for task in self.tasks.values()}
            self._workload, self._is_outdated = (
                dataclasses.replace(
                    self._workload,
                    tasks=tuple(self.tasks.values()),
                    deadlines={name: due for name, due in self._workload.deadlines.items() if name in present},
                    weights={name: weight for name, weight in self._workload.weights.items() if name in present},
                ),
                False,
            )
        return self._workload

    @property
    def is_open(self) -> bool:
        """Whether tasks may come and go."""
        return self._workload.open and not self._is_closed

    def close(self) -> None:
        """No more tasks come."""
        self._is_closed = True

    def pending(self) -> bool:
        """Whether some task has not ended, nor is to be paused."""
        self._look()
        return bool(self._unended)

    @property
    def left(self) -> int:
        """How many tasks have not ended."""
        self._look()
        return len(self._unended)

    def known(self) -> list[tuple[TaskId, Progress]]:
        """The tasks that have not ended and of which the family is known, and where they stand."""
        self._look()
        return list(self._known.items())

    def _look(self) -> None:
        """Bring the sets up to date. A stream has tens of thousands of tasks of which few are left at a time."""
        touched, self._new = self.ledger.touched() | self._new, {}
        if not touched and len(self.tasks) == self._seen:
            return
        if len(self.tasks) != self._seen:  # some were added by others
            self._seen, touched = len(self.tasks), dict.fromkeys(self.tasks)
        for task in touched:
            if task not in self.tasks:
                continue
            if self.ledger.rests(task):
                self._unended.discard(task)
                self._known.pop(task, None)
                continue
            self._unended.add(task)
            if (one := self.ledger[task]).fingerprint:
                self._known[task] = one

    def replace(self, tasks: Iterable[Task], *, gone: Iterable[TaskId] = ()) -> None:
        """Take these tasks on, and know of the others no more."""
        for task in gone:
            self._seen -= task in self.tasks
            del self.tasks[task]
            self._unended.discard(task)
            self._known.pop(task, None)
        tasks = tuple(tasks)
        self.ledger.hide(tasks)
        new = {task.identity: task for task in tasks}
        self._new |= dict.fromkeys(new)
        self._seen += len(new.keys() - self.tasks.keys())
        self.tasks |= new
        self._is_outdated = True

    def leave(self, devices: Iterable[str], *, for_good: bool = True) -> None:
        """Plan without these devices from now on. Raises `DovetailError` where none is left and none comes back."""
        devices = [device for device in devices if device not in self._gone]
        self._set_cluster(self._gone.union(devices))
        self.queues.leave(devices)
        if for_good and not (self.cluster.devices or self.may_grow):
            raise DovetailError(
                "a run must have devices; all of them have left the cluster. What was saved is safe: run the same "
                "command to go on when there are some."
            )

    def join(self, devices: Iterable[str], *, cluster: Cluster | None = None) -> None:
        """Devices that had left may be planned with again, or new ones, of which a `cluster` says what they are."""
        if cluster is not None and (whole := self._whole.joined_by(cluster)).devices != self._whole.devices:
            self._whole = whole
            self._processors = {device.name: whole.kind(device.kind).processor for device in whole.devices}
            held = [each for each in self.running.values() if each.vacated_at is None]
            taken = [(each.order.devices, each.option) for each in held]
            self.queues.grow(whole, taken=taken)
        self._set_cluster(self._gone.difference(devices))
        self.queues.join(devices)

    def devices_of(self, node: str) -> tuple[str, ...]:
        """The devices of a node, whether or not they are there."""
        return tuple(device.name for device in self._whole.devices if device.node == node)

    def _set_cluster(self, gone: set[str]) -> None:
        self._gone, self.cluster = gone, self._whole.without(gone)
        self._measured = ()

    @property
    def has_cpus(self) -> bool:
        """Whether some devices are cores."""
        return "cpu" in self._processors.values()

    @property
    def is_whole(self) -> bool:
        """Whether all devices are there."""
        return not self._gone

    def offers(self) -> Offers:
        """The options of everything measured so far, or those that were given."""
        if self.measures and self._measured != (basis := (self.ledger.measured, tuple(self.sizes().items()))):
            self._measured = basis
            offered, rejections = derive_options(
                self._profiles(),
                self.cluster,
                members=self.sizes(),
                divided=self._divided(),
                rejected=self.ledger.rejections().values(),
                may=self.may,
                allowed=self.allowed(),
            )
            self._offers = Offers(offered, rejections)
        assert self._offers is not None
        return self._offers

    def placeable(self, problem: Problem) -> Problem:
        """A problem less the tasks that nothing fits: they fail, with the reason, or wait while something is still to
        be learned."""
        if not problem.rejections and self.measures:  # rounds are made without; who fails is told why
            rejections = (*self.offers().rejections, *self.ledger.rejections().values())
            problem = dataclasses.replace(problem, rejections=rejections) if rejections else problem
        nowhere = unvisitable(problem) | unplaceable(problem, techniques=self.workload.techniques)
        if not self.is_measuring:
            held = self._held(nowhere)
            self.hold(held)
            self.fail({task: reason for task, reason in nowhere.items() if task not in held})
        return without(problem, nowhere) if nowhere else problem

    def _held(self, nowhere: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """Of the tasks that nothing fits, those that could be trained if what has left were there, or any device."""
        if not nowhere or not (self._gone or self.may_grow):
            return {}
        offered, _ = derive_options(
            self._profiles(),
            self._whole,
            members=self.sizes(),
            divided=self._divided(),
            rejected=(),
            may=self.may,
            allowed=self.allowed(),
        )
        unfit = {(each.families, each.technique, each.kind, each.count) for each in self.ledger.rejections().values()}
        able = {
            family
            for each in offered
            for family in each.families
            if (each.families, each.technique, each.kind, each.count) not in unfit
        }
        left = sorted({device.node for device in self._whole.devices if device.name in self._gone})
        return {
            task: f"held until devices join: nothing that is there can train it, {why} ({reason})"
            for task, reason in nowhere.items()
            if (known := self.ledger[task].fingerprint) is not None
            and (why := self._why_held(known.family in able, left))
        }

    def _why_held(self, is_able: bool, left: list[str]) -> str:
        if is_able and left:
            return f"and node{'s' if len(left) > 1 else ''} {', '.join(left)} left"
        return "" if self.cluster.devices else "for there is no device"

    def is_held(self) -> bool:
        """Whether some task waits for devices, or was never built for want of any."""
        return any(self.ledger[task].held or not self.ledger[task].fingerprint for task in self._unended)

    def hold(self, reasons: Mapping[TaskId, str]) -> None:
        """These tasks wait for devices, for these reasons; each is said once."""
        new = {task: reason for task, reason in reasons.items() if self.ledger[task].held != reason}
        self.ledger.record(self.ledger.event(TaskHeld, task, reason=reason) for task, reason in new.items())

    def fail(self, reasons: Mapping[TaskId, str]) -> None:
        """These tasks cannot go on, for these reasons."""
        self.ledger.record(self.ledger.event(TaskFailed, task, reason=reason) for task, reason in reasons.items())

    def problem(self, *, moving: bool = False) -> Problem:
        """What is to be placed now; with `moving`, what runs could be placed anew as well."""
        now = self.now()
        placed = [each for each in self.running.values() if each.placement]
        # Of a gang that was stopped some may be back before the others; their devices are not free until all are.
        busy = set[TaskId]().union(*(each.tasks for each in placed))
        waiting = [
            self._waiting(task, self.steps(task))
            for task in self.tasks
            if task not in busy
            and (one := self.ledger[task]).status == "pending"
            and one.fingerprint
            and not self.recovery.waits(task)
        ]
        tours = self._tours([each.task for each in waiting], placed, now)
        waiting = [each for each in waiting if not self.ledger.has_ended(each.task)]
        if moving:
            waiting += [self._waiting(task, left) for each in placed for task, left in self._left(each, now).items()]
        problem = snapshot(
            waiting,
            profiles=self._profiles(),
            cluster=self.cluster,
            may=self.may,
            running=self._running_here(now),
            rejected=self.ledger.rejections().values(),
            divided=self._divided(),
            objective=self._objective(),
            allowed=self.allowed(),
        )
        return dataclasses.replace(problem, tours=tours) if tours else problem

    def _tours(self, waiting: list[TaskId], placed: list[Running], now: float) -> dict[TaskId, ShardTour]:
        """What the tasks have left to visit whose shards do not lie on every node; those that run, after what they are
        at. One whose shards lie nowhere fails, with the reason."""
        found: dict[TaskId, ShardTour] = {}
        for task in waiting:
            tour = self._tour(task, start=self.ledger[task].saved_step)
            if tour is not None:
                at = self._node_of(task)
                found[task] = dataclasses.replace(tour, at=at)
        for each in placed:
            (member, *_), placement = each.order.members, each.placement
            if placement is None or not placement.shard or member.final or self.ledger.rests(member.task.identity):
                continue
            tour = self._tour(member.task.identity, start=member.until_step, but=member.evaluates)
            if tour is not None:
                end = self._remaining(each, now).end_seconds if each.vacated_at is None else 0.0
                at, option = self.cluster.device(placement.devices[0]).node, placement.option
                found[member.task.identity] = dataclasses.replace(tour, at=at, ready_seconds=end, option=option)
        return found

    def _tour(self, task: TaskId, *, start: int, but: str = "") -> ShardTour | None:
        """What is left from a step on, but for a shard on which it is being evaluated; None where nothing is that
        needs a tour."""
        one = self.ledger[task]
        facts = one.fingerprint.shards if one.fingerprint else None
        until, _ = self.target(task)
        if facts is None:
            return None
        evaluations = self._evaluations(task, start=start, but=but)
        if start >= until and not evaluations:
            return None
        homes, wrong = self._places.homes(facts, self.cluster)
        evaluated = one.fingerprint.evaluation  # type: ignore[union-attr]
        evaluated_homes, wrong_too = self._places.homes(evaluated, self.cluster) if evaluated is not None else ({}, "")
        wrong = wrong or wrong_too
        if not wrong and not needs_tour([*homes.values(), *evaluated_homes.values()], self.cluster):
            return None
        if not wrong and not self.may("hop"):
            wrong = "its shards lie on several nodes, so that technique hop must be allowed (--techniques, techniques=)"
        if wrong:
            self.fail({task: wrong})
            return None
        tour = tour_of(facts, homes=homes, chosen=one.shard_orders, start=start, until=until, evaluations=evaluations)
        sizes = [each for each in self.ledger.profiles() if each.family == one.fingerprint.family]  # type: ignore[union-attr]
        read_seconds = self._places.read_seconds(facts, homes, self.cluster)
        return dataclasses.replace(
            tour,
            read_seconds=read_seconds,
            copied={each.name: each.url for each in facts.shards if each.copy and each.name in read_seconds},
            state_bytes=max((each.parameter_bytes + each.optimizer_bytes for each in sizes), default=0),
            gradient_bytes=max((each.parameter_bytes for each in sizes), default=0),
            evaluation=evaluation_tour(evaluated, evaluated_homes, sizes) if evaluated is not None else None,
        )

    def _evaluations(self, task: TaskId, *, start: int, but: str) -> dict[int, tuple[str, ...]]:
        """From a step on, after which a task is to be evaluated on shards, and on which of them."""
        fingerprint, (until, is_last) = self.ledger[task].fingerprint, self.target(task)
        if fingerprint is None or fingerprint.evaluation is None or fingerprint.shards is None:
            return {}
        names, every = fingerprint.evaluation.names, fingerprint.evaluate_every or fingerprint.shards.steps_per_epoch
        found = dict.fromkeys(range(start - start % every, until + 1, every), names)
        found = {step: names for step in found if step >= max(start, 1)}
        if is_last and until >= start:
            found[until] = names
        if start in found:
            found[start] = tuple(name for name in self.unevaluated(task, step=start) if name != but)
            if start == until and not found[start] and not but:
                found[start] = names[-1:]  # it has its end to report, which was lost
        return {step: shards for step, shards in found.items() if shards}

    def unevaluated(self, task: TaskId, *, step: int) -> tuple[str, ...]:
        """The shards on which a task has still to be evaluated as it was after a step."""
        one = self.ledger[task]
        assert one.fingerprint is not None
        names = one.fingerprint.evaluation.names if one.fingerprint.evaluation is not None else ()
        return tuple(name for name in names if one.evaluated_step != step or name not in one.evaluated)

    def _node_of(self, task: TaskId) -> str:
        """The node where a task was last saved; empty where it was not."""
        one = self.ledger[task]
        if not (one.saved_step and one.spans):
            return ""
        known = {device.name: device.node for device in self._whole.devices}
        return known.get(one.spans[-1].devices[0], "")

    def sizes(self) -> dict[str, int]:
        """How many tasks each family has, rounded up to a power of two: rounds need no exact number, and what they
        choose among should not change with every task that ends."""
        counts = self.expected(Counter(one.fingerprint.family for one in self._known.values() if one.fingerprint))
        return {family: 1 << (count - 1).bit_length() for family, count in sorted(counts.items())}

    def expected(self, counts: Mapping[str, int]) -> dict[str, int]:
        """So many tasks of each family, with those that are still to come, of which is expected what is known."""
        known, more = sum(counts.values()), self.to_come or 0
        return {family: count + more * count // known for family, count in counts.items()}

    def _divided(self) -> list[tuple[Profile, dict[str, Any]]]:
        """What ran out of memory, with the knobs of the lower rung to offer it on, where the settings allow them."""
        return [(profile, knobs) for profile, knobs in self.ledger.divided() if self.may(profile.technique, knobs)]

    def _profiles(self) -> list[Profile]:
        return [each for each in self.ledger.profiles() if self.is_exact_enough(each.technique, each.knobs)]

    def may(self, technique: str, knobs: Mapping[str, Any] = FrozenDict()) -> bool:
        """Whether the workload and the settings allow a technique with these knobs."""
        return self._workload.allows(technique) and self.is_exact_enough(technique, knobs)

    def allowed(self) -> dict[str, tuple[Approximate, ...]]:
        """By family, with which approximations its tasks may be trained: its program or the workload says so, it can
        have them, and with tolerances it was shown to keep to these."""
        found = {}
        for _, one in self.known():
            known = one.fingerprint
            if known is not None and known.family not in found and (known.allow or self._workload.allow):
                names = {*known.allow, *self._workload.allow}.intersection(known.approximations)
                found[known.family] = tuple(way for way in combinations(names) if self._may_have(known.family, way))
        return {family: ways for family, ways in found.items() if ways}

    def _may_have(self, family: str, way: Approximate) -> bool:
        wanted, keep = self._workload.approximate, self._workload.keep
        return wanted in (None, way) and (not keep or self.ledger.keeps(family, way, keep))

    def is_exact_enough(self, technique: str, knobs: Mapping[str, Any] = FrozenDict()) -> bool:
        """Whether the settings ask for no more exactness than a technique has with these knobs."""
        return not (self.settings.exact and spec_of(technique).rounds(knobs))

    def target(self, task: TaskId) -> tuple[int, bool]:
        """To which step a task goes next, and whether that is its end."""
        one = self.ledger[task]
        assert one.fingerprint is not None
        last = self.tasks[task].stop.last_step(one.fingerprint.steps_per_epoch)
        if self._workload.rung_rule is None:
            return last, True
        return halving.target(
            self._workload.rung_rule, promoted_step=one.promoted_step, saved_step=one.saved_step, last_step=last
        )

    def steps(self, task: TaskId) -> int:
        """How many steps a task that does not run has before it."""
        until, _ = self.target(task)
        # A task already there has its end to report; that is a step's worth of work at most.
        return max(1, until - self.ledger[task].saved_step)

    def steps_left(self, task: TaskId) -> int:
        """How many steps a task has before it, from where it is now."""
        until, _ = self.target(task)
        return max(1, until - self.ledger[task].step)

    def kept(self, one: Progress) -> int:
        """The count of threads that a task must keep: its rounding on a CPU depends on it. 0: any."""
        if not one.spans or not (one.saved_step or one.status == "running"):
            return 0
        processor = self._processors.get(one.spans[-1].devices[0], "cpu")
        return one.count if processor == "cpu" else 0

    def began_with(self, one: Progress) -> Approximate | None:
        """The approximations that a task has begun with, which it keeps, or that the workload wants of all; None where
        planners choose."""
        if self._workload.approximate is not None:
            return self._workload.approximate
        return one.approximate if one.saved_step or one.status == "running" else None

    def _objective(self) -> str:
        """The workload's objective, as of now."""
        wanted = Objective.parse(self.workload.objective)
        if wanted.name == "first":
            have = sum(self.ledger[task].status == "finished" for task in self.tasks)
            # With the results that were asked for, what is left is only to be over soon.
            left = wanted.results - have
            return str(dataclasses.replace(wanted, results=left)) if left > 0 else "makespan"
        if wanted.name == "spend":
            left_seconds = wanted.deadline_seconds - (self.now() - self.began)
            return str(dataclasses.replace(wanted, deadline_seconds=left_seconds)) if left_seconds > 0 else "makespan"
        return str(wanted)

    def _waiting(self, task: TaskId, steps: int) -> Waiting:
        one = self.ledger[task]
        assert one.fingerprint is not None
        return Waiting(
            task=task,
            family=one.fingerprint.family,
            steps=steps,
            count=self.kept(one),
            weight=self.workload.weights.get(self.tasks[task].name, one.priority),
            alone=self.recovery.alone(task),
            deadline_seconds=self._due(task) - self.now(),
            approximate=self.began_with(one),
        )

    def _due(self, task: TaskId) -> float:
        """When a task must have ended, by whichever comes first of what was submitted and what the workload says."""
        own = self.workload.deadlines.get(self.tasks[task].name, math.inf)
        return min(self.ledger[task].deadline_seconds, self.began + own)

    def is_dated(self) -> bool:
        """Whether some task that has not ended has a deadline."""
        return any(self._due(task) < math.inf for task, _ in self.known())

    def named(self, text: str) -> str:
        """What is said of tasks by their identities, by their names."""
        return name_tasks(text, {identity: task.name for identity, task in self.tasks.items()})

    def _remaining(self, running: Running, now: float) -> Placement:
        """A running placement as planners see it: started before zero, ending as its progress says, or as predicted
        where it has reported none, or soon if it is late."""
        assert running.placement is not None
        start, length = running.started_at - now, running.placement.duration_seconds
        seen = [
            (member.until_step - one.step) / one.steps_per_second
            for member in running.order.members
            if (one := self.ledger[member.task.identity]).status == "running" and one.steps_per_second
        ]
        # Late by an unknown amount: a tenth of its length more is as good a guess as any.
        end = max(seen) if seen else start + length if start + length > 0 else 0.1 * length
        return dataclasses.replace(running.placement, start_seconds=start, duration_seconds=end - start)

    def remaining_seconds(self, running: Running) -> float:
        """For how long a placement is expected to run on."""
        now = self.now()
        return self._remaining(running, now).end_seconds

    def is_there(self, devices: Iterable[str]) -> bool:
        """Whether all of these are there to be planned with."""
        return self._gone.isdisjoint(devices)

    def _running_here(self, now: float) -> tuple[Placement, ...]:
        """What runs as planners see it, on devices that they are shown: of a gang on a node that leaves, the others."""
        found = []
        for each in self.running.values():
            if each.vacated_at is not None:
                continue
            here = tuple(device for device in each.order.devices if device not in self._gone)
            if each.placement and len(here) == len(each.order.devices):
                found.append(self._remaining(each, now))
            elif here:
                found.append(self._taken(here, now - each.started_at))
        return tuple(found)

    def _taken(self, devices: tuple[str, ...], taken: float) -> Placement:
        """Devices of an order that measures, or is to end, as planners see them: taken, for ten times as long as they
        have been. One that takes long may hang, and nothing else is to wait; when it ends, all is planned anew."""
        kind = self.cluster.device(devices[0]).kind
        option = Option(families=("",), technique="resident", kind=kind, count=len(devices), step_seconds=(1.0,))
        return Placement(
            tasks=(), steps=(), option=option, devices=devices, start_seconds=-taken, duration_seconds=11 * taken
        )

    def _left(self, running: Running, now: float) -> dict[TaskId, int]:
        """How many steps each task of a running placement has yet to take."""
        placement = self._remaining(running, now)
        share = placement.end_seconds / placement.duration_seconds
        return {
            task: max(1, min(steps, math.ceil(steps * share)))
            for task, steps in zip(placement.tasks, placement.steps, strict=True)
            if self.ledger[task].status == "running"
        }
