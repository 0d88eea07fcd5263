"""What planners choose between and what they decide: options, placements, schedules, plans."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.hardware import Cluster
from dovetail.vocabulary.notebook_html import html_details, html_gantt, html_lines, html_table
from dovetail.vocabulary.objectives import Objective
from dovetail.vocabulary.records import FrozenDict
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import show_seconds
from dovetail.vocabulary.user_text import escape_controls
from dovetail.vocabulary.work import TaskId, Workload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One task of a family, as planners see it: who it is and how much is left.

    The rest is for policies that share a cluster: how long ago it was submitted, how long its steps so far would
    have taken on an equal split of the cluster, in how many seconds it must have ended, on whose behalf it runs, and
    how many came before it, which tells apart those of one age.

    >>> Member(task="a", steps=100).weight
    1.0
    """

    task: TaskId
    steps: int
    weight: float = 1.0
    age_seconds: float = 0.0
    isolated_seconds: float = 0.0
    deadline_seconds: float = math.inf
    entity: str = ""
    place: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FamilyKey:
    """Tasks of one measured family that may be placed alike: those that must keep so many CPU `threads` (0: any), are
    to run `alone`, or go on with the approximations that they began with (empty: exactly; None: any that is allowed)
    have options of their own, which call them by its text, and say under which names they were measured.

    >>> str(FamilyKey(family="f")), str(FamilyKey(family="f", threads=1, alone=True, approximate=""))
    ('f', 'f (1 thread, alone, exact)')
    """

    family: str
    threads: int = 0
    alone: bool = False
    approximate: str | None = None

    @property
    def is_limited(self) -> bool:
        """Whether not all options of the family are its own."""
        return bool(self.threads or self.alone or self.approximate is not None)

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        limits = [threads] * (self.threads > 0) + ["alone"] * self.alone
        limits += [self.approximate or "exact"] * (self.approximate is not None)
        return f"{self.family} ({', '.join(limits)})" if limits else self.family


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks whose options are identical. `key` says which measured family they are of, where their options are not all
    of that family's.

    >>> Family(name="f", members=(Member(task="a", steps=1),)).measured_as
    'f'
    >>> key = FamilyKey(family="f", threads=2)
    >>> Family(name=str(key), members=(Member(task="a", steps=1),), key=key).measured_as
    'f'
    """

    name: str
    members: tuple[Member, ...]
    key: FamilyKey | None = None

    @property
    def measured_as(self) -> str:
        """The family under which these tasks are measured."""
        return self.name if self.key is None else self.key.family


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A gang of one or more families × technique with its knobs × device kind × count, with what it takes.

    `step_seconds` holds one figure for each family of the gang; what is paid once for each placement is in
    `start_seconds`, and `step_seconds` includes the shares of evaluating and saving. Bytes and cores are
    those of the whole gang: `device_bytes` on each device, the others on the node. Of the `cores`, `feed_cores` read
    its batches (zero: as many as it may use). For `update_seconds` of a step the host updates weights (0: not known). A
    gang over several nodes, which the knob `nodes` says, has as many devices on each, and its share of the rest; the
    link between any two of them carries at least `link_bytes_per_second`, for the gang alone (0: not known).

    Where `families` are called after a `FamilyKey`, `measured_as` has the names under which they were measured.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> option.seconds((100,))
    50.0
    """

    families: tuple[str, ...]
    technique: str
    kind: str
    count: int
    step_seconds: tuple[float, ...]
    knobs: Mapping[str, Any] = FrozenDict()
    start_seconds: float = 0.0
    device_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    cores: int = 0
    feed_cores: int = 0
    update_seconds: float = 0.0
    measured: bool = True
    measured_as: tuple[str, ...] = ()
    link_bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", FrozenDict(self.knobs))
        if not self.families or len(self.families) != len(self.step_seconds):
            raise InvalidRecord(
                f"an option must have one step_seconds for each family of its gang, "
                f"got {len(self.step_seconds)} for {len(self.families)}."
            )
        if self.count < 1 or not all(seconds > 0 for seconds in self.step_seconds):
            raise InvalidRecord(
                f"an option must have count >= 1 and step_seconds > 0, got {self.count} and {self.step_seconds}."
            )
        if self.nodes < 1 or self.count % self.nodes:
            raise InvalidRecord(
                f"an option over several nodes must have as many devices on each, got {self.count} on {self.nodes}."
            )

    @property
    def nodes(self) -> int:
        """Over how many nodes it goes."""
        return int(self.knobs.get("nodes", 1)) if self.knobs else 1

    @property
    def count_on_node(self) -> int:
        """How many devices it has on each of its nodes."""
        return self.count // self.nodes

    @property
    def measured_families(self) -> tuple[str, ...]:
        """The families under which its tasks were measured. Earlier versions wrote a thread count behind an `@`."""
        return self.measured_as or tuple(family.partition("@")[0] for family in self.families)

    def named(self, keys: Sequence[FamilyKey]) -> "Option":
        """The same for tasks that are limited so."""
        measured = tuple(key.family for key in keys)
        return dataclasses.replace(self, families=tuple(map(str, keys)), measured_as=measured)

    def seconds(self, steps: tuple[int, ...]) -> float:
        """How long a placement takes in which the gang's members do these many steps."""
        work = max(each * count for each, count in zip(self.step_seconds, steps, strict=True))
        return self.start_seconds + work


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An option for named tasks on named devices from a start for a duration: its prediction. One that is a visit
    takes its task through a `shard` of data, and no further.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> where = {"option": option, "devices": ("n0:0",)}
    >>> Placement(tasks=("a",), steps=(4,), start_seconds=1, duration_seconds=2, **where).end_seconds
    3
    """

    tasks: tuple[TaskId, ...]
    steps: tuple[int, ...]
    option: Option
    devices: tuple[str, ...]
    start_seconds: float
    duration_seconds: float
    shard: str = ""

    @property
    def end_seconds(self) -> float:
        """When it should be over."""
        return self.start_seconds + self.duration_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Placements.

    >>> Schedule(placements=()).makespan_seconds
    0.0
    """

    placements: tuple[Placement, ...]

    @property
    def makespan_seconds(self) -> float:
        """When the last placement ends."""
        return max((placement.end_seconds for placement in self.placements), default=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """Those on whose behalf tasks run: what they may claim of the cluster, and how they share it among their tasks:
    `fairness`, or `first_come`.

    >>> Entity(name="vision", weight=2.0).inside
    'fairness'
    """

    name: str
    weight: float = 1.0
    inside: str = "fairness"

    def __post_init__(self) -> None:
        if not self.weight > 0 or self.inside not in ("fairness", "first_come"):
            raise InvalidRecord(
                f"entity {self.name!r} must have a weight > 0 and share 'fairness' or 'first_come' inside, "
                f"got {self.weight} and {self.inside!r}."
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much time an option gets: the number of its gangs that run at once, on average over time.

    `groups` names, for each family of the option, the allocation's group whose tasks take that place in
    turn, each of them as long as the others.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> Share(option=option, share=0.25).groups
    (0,)
    """

    option: Option
    share: float
    groups: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Shares of time for options, with the tasks of each group that is treated alike.

    `value` is what the policy's objective comes to and `bound` what it could be at most; both are zero where the
    policy has no objective. Where `fills`, devices that the shares leave idle may go to whoever can use them.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> allocation = Allocation(groups=(("a", "b"),), shares=(Share(option=option, share=1.0),), value=2.0, bound=2.1)
    >>> allocation.rates(), round(allocation.gap, 3)
    ((1.0,), 0.05)
    """

    shares: tuple[Share, ...]
    groups: tuple[tuple[TaskId, ...], ...] = ()
    value: float = 0.0
    bound: float = 0.0
    fills: bool = True

    def rates(self) -> tuple[float, ...]:
        """The steps per second of each task of each group: the sum of share × rate."""
        totals = [0.0] * len(self.groups)
        for share in self.shares:
            for group, seconds in zip(share.groups, share.option.step_seconds, strict=True):
                totals[group] += share.share / seconds
        return tuple(total / len(tasks) for total, tasks in zip(totals, self.groups, strict=True))

    @property
    def gap(self) -> float:
        """How far the objective may be from the best, as a share of what it is."""
        return self.bound / self.value - 1 if self.value > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What does not fit is absent with a reason, never a large number.

    `needed_bytes` and `free_bytes` are zero where the reason is not memory; `knobs` are those it was tried with.

    >>> Rejection(families=("f",), technique="resident", kind="v100", count=1, reason="too large").reason
    'too large'
    """

    families: tuple[str, ...]
    technique: str
    kind: str
    count: int
    reason: str
    needed_bytes: int = 0
    free_bytes: int = 0
    knobs: Mapping[str, Any] = FrozenDict()

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", FrozenDict(self.knobs))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What planning gives: a schedule or an allocation, the proven lower bound of the objective, what was
    rejected, and one line for each task that says why. What `dt.plan` returns also says for which workload
    on which cluster, so that `dt.run` can run it.

    `value` is the objective's and `bound` what is proven of it, in seconds or, for `spend`, in money; with `makespan`
    both are zero, and the schedule's own makespan and `bound_seconds` count.

    >>> Plan(schedule=Schedule(placements=()), bound_seconds=0.0).gap
    0.0
    >>> round(Plan(schedule=Schedule(placements=()), objective="mean", value=11.0, bound=10.0).gap, 3)
    0.1
    """

    schedule: Schedule | None = None
    allocation: Allocation | None = None
    bound_seconds: float = 0.0
    rejections: tuple[Rejection, ...] = ()
    explanation: tuple[str, ...] = ()
    workload: Workload | None = None
    cluster: Cluster | None = None
    objective: str = "makespan"
    value: float = 0.0
    bound: float = 0.0

    def __str__(self) -> str:
        placements = self.schedule.placements if self.schedule else ()
        tasks = self.workload.tasks if self.workload else ()
        redact = Redactor(task.parameters for task in tasks)
        names = {task.identity: redact(task.name) for task in tasks}
        rows = [
            f"{show_seconds(p.start_seconds):>12} {show_seconds(p.duration_seconds):>12}  "
            f"{p.option.technique} on {', '.join(p.devices):<12}  {', '.join(names.get(t, t) for t in p.tasks)}"
            for p in sorted(placements, key=lambda p: (p.start_seconds, p.devices))
        ]
        head = f"{'start':>12} {'duration':>12}  how, where and what"
        return escape_controls("\n".join([head, *rows, *self.verdict, *redact.plan(self).explanation]))

    def _repr_html_(self) -> str:
        """What a notebook shows: the schedule drawn and as a table, what it comes to, and why."""
        tasks = self.workload.tasks if self.workload else ()
        redact = Redactor(task.parameters for task in tasks)
        names = {task.identity: redact(task.name) for task in tasks}
        schedule, shown = self.schedule or Schedule(placements=()), redact.plan(self)
        rows = [
            (
                show_seconds(p.start_seconds),
                show_seconds(p.duration_seconds),
                ", ".join(names.get(task, task) for task in p.tasks),
                p.option.technique + ("" if p.option.measured else " (predicted)"),
                ", ".join(p.devices),
            )
            for p in sorted(schedule.placements, key=lambda p: (p.start_seconds, p.devices))
        ]
        rejected = [f"{one.technique} on {one.count} × {one.kind}: {one.reason}" for one in shown.rejections]
        return "".join(
            (
                html_gantt(schedule, names=names),
                html_table(("start", "duration", "task", "technique", "devices"), rows),
                html_lines(self.verdict),
                html_details("why", html_lines(shown.explanation)),
                html_details("what does not fit", html_lines(dict.fromkeys(rejected))),
            )
        )

    @property
    def verdict(self) -> tuple[str, ...]:
        """What the schedule comes to and what is proven of that, a line for each objective."""
        makespan = self.schedule.makespan_seconds if self.schedule else 0.0
        if self.objective == "makespan":
            least = show_seconds(self.bound_seconds)
            return (f"makespan {show_seconds(makespan)}, at least {least} on these devices",)
        value, bound = map(Objective.parse(self.objective).show, (self.value, self.bound))
        proof = f"at least {bound} on these devices" if self.bound > 0 else "no bound is proven"
        return (f"makespan {show_seconds(makespan)}", f"{self.objective} {value}, {proof}")

    @property
    def gap(self) -> float:
        """How far above the bound the objective is, as a share of the bound; infinite where nothing is proven."""
        if self.schedule is None:
            return 0.0
        makespan = self.objective == "makespan"
        value, bound = (self.schedule.makespan_seconds, self.bound_seconds) if makespan else (self.value, self.bound)
        if bound <= 0:
            return 0.0 if value <= 0 or makespan else math.inf
        return value / bound - 1
