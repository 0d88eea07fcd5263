"""What planners choose between and what they decide: options, placements, schedules, plans."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.hardware import Cluster
from dovetail.vocabulary.records import FrozenDict
from dovetail.vocabulary.units import show_seconds
from dovetail.vocabulary.work import Workload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One task of a family, as planners see it: who it is and how much is left.

    >>> Member(task="a", steps=100).weight
    1.0
    """

    task: str
    steps: int
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks whose options are identical.

    >>> Family(name="f", members=(Member(task="a", steps=1),)).members[0].task
    'a'
    """

    name: str
    members: tuple[Member, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A gang of one or more families × technique with its knobs × device kind × count, with what it takes.

    `step_seconds` holds one figure for each family of the gang; what is paid once for each placement is in
    `start_seconds`, and `step_seconds` includes the shares of evaluating and saving. Bytes and cores are
    those of the whole gang: `device_bytes` on each device, the others on the node.

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
    measured: bool = True

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

    def seconds(self, steps: tuple[int, ...]) -> float:
        """How long a placement takes in which the gang's members do these many steps."""
        work = max(each * count for each, count in zip(self.step_seconds, steps, strict=True))
        return self.start_seconds + work


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An option for named tasks on named devices from a start for a duration: its prediction.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> where = {"option": option, "devices": ("n0:0",)}
    >>> Placement(tasks=("a",), steps=(4,), start_seconds=1, duration_seconds=2, **where).end_seconds
    3
    """

    tasks: tuple[str, ...]
    steps: tuple[int, ...]
    option: Option
    devices: tuple[str, ...]
    start_seconds: float
    duration_seconds: float

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
class Share:
    """The share of wall time that an option of one family's tasks gets.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> Share(option=option, share=0.25).share
    0.25
    """

    option: Option
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Shares of time for options.

    >>> Allocation(shares=()).shares
    ()
    """

    shares: tuple[Share, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What does not fit is absent with a reason, never a large number.

    `needed_bytes` and `free_bytes` are zero where the reason is not memory.

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What planning gives: a schedule or an allocation, the proven lower bound of the objective, what was
    rejected, and one line for each task that says why. What `dt.plan` returns also says for which workload
    on which cluster, so that `dt.run` can run it.

    >>> Plan(schedule=Schedule(placements=()), bound_seconds=0.0).gap
    0.0
    """

    schedule: Schedule | None = None
    allocation: Allocation | None = None
    bound_seconds: float = 0.0
    rejections: tuple[Rejection, ...] = ()
    explanation: tuple[str, ...] = ()
    workload: Workload | None = None
    cluster: Cluster | None = None

    def __str__(self) -> str:
        placements = self.schedule.placements if self.schedule else ()
        names = {task.identity: task.name for task in (self.workload.tasks if self.workload else ())}
        rows = [
            f"{show_seconds(p.start_seconds):>12} {show_seconds(p.duration_seconds):>12}  "
            f"{p.option.technique} on {', '.join(p.devices):<12}  {', '.join(names.get(t, t) for t in p.tasks)}"
            for p in sorted(placements, key=lambda p: (p.start_seconds, p.devices))
        ]
        head = f"{'start':>12} {'duration':>12}  how, where and what"
        makespan = self.schedule.makespan_seconds if self.schedule else 0.0
        foot = f"makespan {show_seconds(makespan)}, at least {show_seconds(self.bound_seconds)} on these devices"
        return "\n".join([head, *rows, foot, *self.explanation])

    @property
    def gap(self) -> float:
        """How far above the bound the makespan is, as a share of the bound."""
        if self.schedule is None or self.bound_seconds <= 0:
            return 0.0
        return self.schedule.makespan_seconds / self.bound_seconds - 1
