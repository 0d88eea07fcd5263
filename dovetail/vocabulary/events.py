"""What happened, as workers report it and the store keeps it: one frozen record for each kind.

An event is stored as its kind, task, attempt and time, and beside these a JSON object with the rest of its fields.
Stores outlive versions: a field that a reader does not know is passed over, one that is missing has its default, and
fields at their default are not written. `EVENTS` lists the kinds.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from dovetail.vocabulary.decisions import Option, Rejection
from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.event_base import COLUMNS, Event
from dovetail.vocabulary.node_events import DevicesJoined, DevicesLeft, NodeLeaving, NodeRented, NodeReturned
from dovetail.vocabulary.profiles import Fingerprint, Profile
from dovetail.vocabulary.records import FrozenDict, from_field, schema
from dovetail.vocabulary.request_events import (
    CancelAsked,
    DeadlineChanged,
    PriorityChanged,
    PruneAsked,
    TaskPaused,
    TaskRestarted,
    TaskResumed,
    TaskRetried,
)
from dovetail.vocabulary.user_text import shorten
from dovetail.vocabulary.work import TaskId

# Who comes and goes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescribed(Event):
    """A task entered the store; it is in its own table."""

    kind: ClassVar[str] = "described"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSubmitted(Event):
    """A task was given to a daemon: when it is to have ended, if ever, and on whose behalf it runs, if anybody's. A
    clone has the name of the other task and the step of the weights that it begins with (0: its program's own). The
    `reason` is why, where that was said: a drift, for one that is to be trained again."""

    kind: ClassVar[str] = "submitted"
    priority: float
    deadline_seconds: float = float("inf")
    entity: str = ""
    of: str = ""
    step: int = 0
    asked_by: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskChanged(Event):
    """A task's program or parameters were edited, and a new identity took over."""

    kind: ClassVar[str] = "changed"
    by: TaskId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskVanished(Event):
    """A task is no longer in its workload file; it is kept."""

    kind: ClassVar[str] = "vanished"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskReturned(Event):
    """A vanished task is in its workload file again."""

    kind: ClassVar[str] = "returned"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskExtended(Event):
    """A task's stopping rule was edited; both in words."""

    kind: ClassVar[str] = "extended"
    before: str
    after: str


# What is learned and decided


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskFingerprinted(Event):
    """A worker built a task and knows its family."""

    kind: ClassVar[str] = "fingerprinted"
    body: ClassVar[str] = "fingerprint"
    fingerprint: Fingerprint


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialMeasured(Event):
    """A trial ended."""

    kind: ClassVar[str] = "measured"
    body: ClassVar[str] = "profile"
    profile: Profile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionRejected(Event):
    """An option does not fit, or its technique refuses. With `lost`, because its trial was lost each time: those losses
    were the option's and count no more against the task."""

    kind: ClassVar[str] = "rejected"
    body: ClassVar[str] = "rejection"
    rejection: Rejection
    lost: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchDivided(Event):
    """A placement ran out of memory: batches of its family, no smaller than before, are offered in more parts, or with
    activations computed again."""

    kind: ClassVar[str] = "divided"
    family: str
    technique: str = "resident"
    device_kind: str = dataclasses.field(metadata={"stored": "kind"})
    count: int
    microbatches: int
    recompute: bool = False
    message: str = ""
    approximate: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApproximationJudged(Event):
    """Pairs of trainings, exact and approximate with the same seed, have shown whether a family that is trained with
    these approximations `keeps` its metrics to the tolerances in `keep`, or that it could not be shown. It took so many
    `seconds`."""

    kind: ClassVar[str] = "judged"
    family: str
    approximate: str
    keep: Mapping[str, float]
    keeps: bool
    why: str
    pairs: int
    seconds: float = 0.0


RUN_BEGAN = "the run began"
"""How the reason for the first plan of a run begins."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(Event):
    """A plan was made, of this number in the store, and why: the first of a run because of `RUN_BEGAN`."""

    kind: ClassVar[str] = "planned"
    plan: int
    workload: str
    makespan_seconds: float
    bound_seconds: float
    because: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardOrderChosen(Event):
    """A task of which the program says that any order of its shards will do reads them in this one, epoch by epoch from
    `epoch` on, whatever happens to it."""

    kind: ClassVar[str] = "order_chosen"
    epoch: int
    orders: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShared(Event):
    """A policy shared the cluster anew among so many tasks."""

    kind: ClassVar[str] = "shared"
    workload: str
    because: str
    tasks: int
    value: float
    bound: float | None = None


# An attempt


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """An attempt began: an order of this name (`placement`) trains the task on these devices from `step` to `until`;
    each of its processes has so many threads."""

    kind: ClassVar[str] = "started"
    placement: str
    devices: tuple[str, ...]
    step: int
    until: int
    predicted_seconds: float
    threads: int = 0
    option: Option | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepsDone(Event):
    """Steps were done; `points` are (metric, step, value). Not stored: its points are."""

    kind: ClassVar[str] = "progress"
    step: int
    steps_per_second: float = 0.0
    points: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetEvaluated(Event):
    """An evaluation of a task with a target ended, and its metric came to `value`. `seconds` are what the attempt has
    spent since it began to take steps, by phase: `train`, `read` (waiting for batches), `compile`, `evaluate` and
    `save`; `evaluation_seconds` is what this evaluation took of them."""

    kind: ClassVar[str] = "evaluated"
    step: int
    value: float
    seconds: Mapping[str, float] = FrozenDict()
    evaluation_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardEvaluated(Event):
    """A task as it was after a step was evaluated on a shard where that lies: by metric a sum, and over how many."""

    kind: ClassVar[str] = "shard_evaluated"
    step: int
    shard: str
    sums: Mapping[str, tuple[float, float]] = FrozenDict()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is complete. That of `best_step`, if any, is kept beside it for `Training.keep_best`."""

    kind: ClassVar[str] = "saved"
    step: int
    path: str = ""
    bytes: int = 0
    best_step: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimed(Event):
    """What the ranks of a pipeline did when in a recent step (without a flush, in its last three): for each rank
    (operation, stage, microbatch, start, end)."""

    kind: ClassVar[str] = "timed"
    step: int
    timetable: str
    microbatches: int
    ranks: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedOpened(Event):
    """A task's feed was opened, in a trial or to train: the workers of each stage in words such as `2 threads`, and
    what is expected to keep it from giving more."""

    kind: ClassVar[str] = "fed"
    workers: Mapping[str, str] = FrozenDict()
    wall: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedResized(Event):
    """The workers of a stage of a task's feed were changed while it ran, from so many to so many, both in words such as
    `2 threads`, and why. `rate` is what the feed gave before, in batches per second."""

    kind: ClassVar[str] = "resized"
    stage: str
    before: str
    after: str
    reason: str = ""
    rate: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDamaged(Event):
    """A damaged checkpoint was passed over."""

    kind: ClassVar[str] = "fell_back"
    path: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStopped(Event):
    """An attempt ended early after saving, to go on later. `data_share` is the part of its steps' time in which it
    waited for data, here and where it ends otherwise; `seconds`, of a task with a target, what it has spent by phase,
    as in `TargetEvaluated`."""

    kind: ClassVar[str] = "stopped"
    step: int
    reason: str = ""
    data_share: float = 0.0
    seconds: Mapping[str, float] = FrozenDict()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost(Event):
    """A worker died or fell silent. The task is tried again, `again_in_seconds` later.

    That counts against the task's retries, unless the fault was not its own: `of_option`, the option was rejected and
    the task is planned anew; `in_gang`, nobody knows which member it was; `of_run`, its controller ended. `of_others`
    says that another rank of the same order is gone, which is the reason. `ending` is how the process ended where that
    was its own doing, such as `exit 3` or `SIGSEGV`.
    """

    kind: ClassVar[str] = "lost"
    reason: str = ""
    ending: str = ""
    log: str = ""
    step: int | None = None
    again_in_seconds: float = 0.0
    of_option: bool = False
    in_gang: bool = False
    of_run: bool = False
    of_others: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DevicesVacated(Event):
    """An order's devices may have the next one, while what it has trained is still being saved; it is released when
    that has come to an end."""

    kind: ClassVar[str] = "vacated"
    placement: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DevicesReleased(Event):
    """An order's devices are free again. `seconds` are what its worker spent on what, by its own word; `busy_seconds`
    for how long its devices computed, of several all together, where that was measured, and `held_bytes` the most that
    was held on one of them, or by the process where that is the host's."""

    kind: ClassVar[str] = "released"
    placement: str
    duration_seconds: float = 0.0
    purpose: str = ""
    devices: tuple[str, ...] = ()
    seconds: Mapping[str, float] = FrozenDict()
    busy_seconds: float | None = None
    held_bytes: int = 0


# How a task ends, or rests


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished(Event):
    """A task met its stopping rule; the reason is empty where that was its last step."""

    kind: ClassVar[str] = "finished"
    step: int
    reason: str = ""
    metrics: Mapping[str, float] = FrozenDict()
    data_share: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RungReached(Event):
    """A task reached a rung of successive halving and waits for the others."""

    kind: ClassVar[str] = "waiting"
    step: int
    reason: str = ""
    metrics: Mapping[str, float] = FrozenDict()
    data_share: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskPromoted(Event):
    """A task goes on past a rung."""

    kind: ClassVar[str] = "promoted"
    step: int
    metric: str = ""
    value: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskHalved(Event):
    """A task was left behind by successive halving."""

    kind: ClassVar[str] = "halved"
    step: int
    metric: str = ""
    value: float = 0.0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskPruned(Event):
    """A search has ended a task, whose state is saved, because others were better; `value` is what its metric was at
    that step."""

    kind: ClassVar[str] = "pruned"
    step: int | None = None
    metric: str = ""
    value: float = 0.0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(Event):
    """A task cannot go on. A worker says what the cause is: `memory`, `refused` by the technique, or the `program`;
    and whether its batch is in the `smallest` parts already. `phase` is what raised, where that is known: `building`,
    `training` or `evaluation`; `log` is the traceback."""

    kind: ClassVar[str] = "failed"
    reason: str = ""
    log: str = ""
    phase: str = ""
    cause: str = ""
    smallest: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeld(Event):
    """A task waits for devices: those that could train it have left, and nothing that is there can."""

    kind: ClassVar[str] = "held"
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskCancelled(Event):
    """A user ended a task."""

    kind: ClassVar[str] = "cancelled"
    step: int | None = None
    asked_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Something the user should know."""

    kind: ClassVar[str] = "warned"
    message: str = ""


EVENTS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        TaskDescribed,
        TaskSubmitted,
        TaskChanged,
        TaskVanished,
        TaskReturned,
        TaskExtended,
        TaskFingerprinted,
        TrialMeasured,
        OptionRejected,
        BatchDivided,
        ApproximationJudged,
        PlanMade,
        ShardOrderChosen,
        ClusterShared,
        AttemptStarted,
        StepsDone,
        TargetEvaluated,
        ShardEvaluated,
        CheckpointSaved,
        PipelineTimed,
        FeedOpened,
        FeedResized,
        CheckpointDamaged,
        AttemptStopped,
        AttemptLost,
        DevicesVacated,
        DevicesReleased,
        TaskFinished,
        RungReached,
        TaskPromoted,
        TaskHalved,
        TaskPruned,
        TaskFailed,
        TaskCancelled,
        TaskRetried,
        TaskRestarted,
        CancelAsked,
        PruneAsked,
        TaskPaused,
        TaskResumed,
        TaskHeld,
        PriorityChanged,
        DeadlineChanged,
        DevicesLeft,
        DevicesJoined,
        NodeLeaving,
        NodeRented,
        NodeReturned,
        Warned,
    )
}

COLUMNS.update(
    {
        kind: tuple(
            (field.metadata.get("stored", field.name), field.name, field.default)
            for field in dataclasses.fields(cls)
            if field.name not in ("at_seconds", "task", "attempt")
        )
        for kind, cls in EVENTS.items()
    }
)


# By kind, the name and type of the field that each key in the store stands for.
_FIELDS: dict[str, dict[str, tuple[str, Any]]] = {
    kind: {key: (name, schema(cast(type, EVENTS[kind]))[name]) for key, name, _ in columns}
    for kind, columns in COLUMNS.items()
}


def _read_field(value: Any, hint: Any, where: str) -> Any:
    # A worker, or whoever wrote the store, may say more than anybody could show.
    return shorten(value) if value.__class__ is hint is str else from_field(hint, value, where)


def read_event(
    kind: str, *, at_seconds: float, task: str = "", attempt: int = 0, data: Mapping[str, Any] = FrozenDict()
) -> Event:
    """The event that was stored, or sent, as this.

    >>> read_event("saved", task="a", attempt=1, at_seconds=12.5, data={"step": 10}).step
    10
    """
    cls = EVENTS.get(kind)
    if cls is None:
        raise InvalidRecord(f"an event's kind must be one of {sorted(EVENTS)}, got {kind!r}.")
    if not isinstance(data, Mapping):
        raise InvalidRecord(f"an event's data must be an object, got {data!r}.")
    known, fields = _FIELDS[kind], dict[str, Any]()
    for key, value in data.items():
        if (field := known.get(key)) is not None:
            name, hint = field
            is_plain = value.__class__ is hint and hint is not str
            fields[name] = value if is_plain else _read_field(value, hint, f"{cls.__name__}.{name}")
    if cls.body and cls.body not in fields:  # what is stored in its place is all of the data
        fields[cls.body] = _read_field(data, known[cls.body][1], f"{cls.__name__}.{cls.body}")
    try:
        return cls(task=TaskId(task), attempt=attempt, at_seconds=from_field(float, at_seconds, "at_seconds"), **fields)
    except TypeError as error:  # a field without a default is missing
        raise InvalidRecord(f"an event of kind {kind!r} is incomplete: {error}") from None
