"""The clock of one run in a race, folded from events: where every second went from its first start to each evaluation.

One run gives the time by every clock, because clocks differ only in the phases that they count. Knows no targets.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from dovetail.metrics.progress import ATTEMPT_ENDS
from dovetail.vocabulary import Event, FrozenDict, TaskId
from dovetail.vocabulary.events import (
    RUN_BEGAN,
    AttemptLost,
    AttemptStarted,
    AttemptStopped,
    CheckpointSaved,
    PlanMade,
    TargetEvaluated,
)
from dovetail.vocabulary.request_events import TaskRestarted

PHASES = {
    "start": "until the first step: an order on its way, imports, building the model and its data",
    "compile": "torch.compile, by its own account",
    "read": "steps that waited for their batches",
    "train": "steps",
    "evaluate": "evaluations",
    "save": "checkpoints written",
    "interrupted": "stops, moves and lost workers: waiting for a device, starting again, work that was lost",
}
"""Each phase and what it means, in their order."""
CLOCKS = {
    "mlperf": ("compile", "read", "train", "evaluate", "save", "interrupted"),
    "dawnbench": ("compile", "read", "train", "interrupted"),
}
"""The phases that each clock counts. MLPerf's begins when data are first touched and is never paused; DAWNBench's
leaves out evaluations and checkpoints."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """What an evaluation found, and where the time had gone by then.

    `seconds` by phase are all since the run's first start; `taken_steps` are those that its `train` and `read` seconds
    were spent on, more than `step` where work was lost and done again; `device_seconds` by device are those for which
    it held one.

    >>> seconds = {"start": 4.0, "train": 5.0, "evaluate": 1.0}
    >>> reading = ClockReading(step=9, value=0.9, at_seconds=20.0, seconds=seconds)
    >>> reading.seconds_by("mlperf"), reading.seconds_by("dawnbench")
    (6.0, 5.0)
    """

    step: int
    value: float
    at_seconds: float
    seconds: Mapping[str, float] = FrozenDict()
    evaluation_seconds: float = 0.0
    taken_steps: int = 0
    device_seconds: Mapping[str, float] = FrozenDict()

    def seconds_by(self, clock: str) -> float:
        """The seconds that this clock shows, of the phases that it counts."""
        return sum(self.seconds.get(phase, 0.0) for phase in CLOCKS[clock])

    @property
    def step_seconds(self) -> float | None:
        """What a step took, waiting for its batches included; None where none was taken."""
        spent = self.seconds.get("train", 0.0) + self.seconds.get("read", 0.0)
        return spent / self.taken_steps if self.taken_steps else None


@dataclasses.dataclass(slots=True, kw_only=True)
class RunClock:
    """One run's readings, and how it ran: on how many devices by which technique, how many times it was interrupted,
    and for how long the race as a whole was stopped, which no clock counts."""

    task: TaskId
    started_seconds: float
    readings: list[ClockReading] = dataclasses.field(default_factory=list)
    ways: set[str] = dataclasses.field(default_factory=set)
    interruptions: int = 0
    stopped_seconds: float = 0.0


def fold_clocks(events: Iterable[Event]) -> dict[TaskId, RunClock]:
    """The clock of every task that has started, by identity.

    >>> events = [
    ...     AttemptStarted(
    ...         task="a", attempt=1, at_seconds=10.0, placement="p", devices=("n0:0",), step=0, until=9,
    ...         predicted_seconds=1.0,
    ...     ),
    ...     TargetEvaluated(
    ...         task="a", attempt=1, at_seconds=18.0, step=5, value=0.9, seconds={"train": 5.0, "evaluate": 1.0}
    ...     ),
    ... ]
    >>> dict(fold_clocks(events)["a"].readings[0].seconds)
    {'train': 5.0, 'evaluate': 1.0, 'start': 2.0}
    """
    folds: dict[TaskId, _ClockFold] = {}
    runs = 0
    for event in events:
        if isinstance(event, PlanMade) and event.because.startswith(RUN_BEGAN):
            runs += 1
        elif isinstance(event, AttemptStarted):
            folds.setdefault(event.task, _ClockFold(event)).start(event, run=runs)
        elif isinstance(event, TaskRestarted):
            folds.pop(event.task, None)
        elif event.task in folds and event.attempt == folds[event.task].attempt:
            folds[event.task].hear(event)
    return {task: fold.clock for task, fold in folds.items()}


class _ClockFold:
    """Brings one run's clock up to date, event by event."""

    def __init__(self, first: AttemptStarted) -> None:
        self.clock = RunClock(task=first.task, started_seconds=first.at_seconds)
        # What earlier attempts came to.
        self._seconds: dict[str, float] = {}
        self._device_seconds: dict[str, float] = {}
        self._taken_steps = 0
        # The attempt under way: how it began, the run of its controller, when it was last heard of, its last reading.
        self._began: AttemptStarted | None = None
        self._run = 0
        self._heard_seconds = first.at_seconds
        self._read: ClockReading | None = None
        self.attempt = 0

    def start(self, event: AttemptStarted, *, run: int) -> None:
        """An attempt begins. What lies between it and the one before interrupts the run, unless the whole race was
        stopped then."""
        if self._began is not None:  # never closed: its controller was killed
            self._close_lost()
        if self.attempt:
            gap = max(0.0, event.at_seconds - self._heard_seconds)
            self.clock.interruptions += 1
            if run != self._run:
                self.clock.stopped_seconds += gap
            else:
                self._add({"interrupted": gap})
        self._began, self._run, self.attempt = event, run, event.attempt
        self._heard_seconds, self._read = event.at_seconds, None
        option = event.option
        technique, kind = (option.technique, option.kind) if option is not None else ("resident", "device")
        self.clock.ways.add(f"{technique} on {len(event.devices)} × {kind}")

    def hear(self, event: Event) -> None:
        """Take in an event of the attempt under way."""
        if self._began is None:
            return
        if isinstance(event, TargetEvaluated):
            self._read = self._make_reading(event)
            self.clock.readings.append(self._read)
        elif isinstance(event, AttemptLost) and event.of_run:  # its controller was; when, nobody knows
            self._close_lost()
            return
        elif isinstance(event, ATTEMPT_ENDS):
            self._close(event)
            return
        elif not isinstance(event, CheckpointSaved):
            return
        self._heard_seconds = max(self._heard_seconds, event.at_seconds)

    def _make_reading(self, event: TargetEvaluated) -> ClockReading:
        assert self._began is not None
        elapsed = event.at_seconds - self._began.at_seconds
        return ClockReading(
            step=event.step,
            value=event.value,
            at_seconds=event.at_seconds,
            seconds=FrozenDict(_sum(self._seconds, self._with_start(event.seconds, elapsed))),
            evaluation_seconds=event.evaluation_seconds,
            taken_steps=self._taken_steps + event.step - self._began.step,
            device_seconds=FrozenDict(_sum(self._device_seconds, dict.fromkeys(self._began.devices, elapsed))),
        )

    def _with_start(self, spent: Mapping[str, float], elapsed: float) -> dict[str, float]:
        """An attempt's seconds with those before its first step, which only the first attempt begins with."""
        phase = "interrupted" if self._seconds else "start"
        return _sum(spent, {phase: max(0.0, elapsed - sum(spent.values()))})

    def _close(self, event: Event) -> None:
        """The attempt ended. After its last reading it saved, where it ended well; else its work since then is lost."""
        assert self._began is not None
        end = max(event.at_seconds, self._heard_seconds)
        if isinstance(event, AttemptStopped) and event.seconds:
            self._add(self._with_start(event.seconds, end - self._began.at_seconds))
            self._taken_steps += event.step - self._began.step
        else:
            self._keep_reading()
            since = self._read.at_seconds if self._read is not None else self._began.at_seconds
            lost = isinstance(event, AttemptLost) or self._read is None
            self._add({"interrupted" if lost else "save": end - since})
        self._end(end)

    def _close_lost(self) -> None:
        """The controller ended with the attempt: what it did after it was last heard of is not known, nor its end."""
        assert self._began is not None
        self._keep_reading()
        since = self._read.at_seconds if self._read is not None else self._began.at_seconds
        self._add({"interrupted": self._heard_seconds - since})
        self._end(self._heard_seconds)

    def _keep_reading(self) -> None:
        if self._read is not None:
            self._seconds, self._taken_steps = dict(self._read.seconds), self._read.taken_steps

    def _add(self, seconds: Mapping[str, float]) -> None:
        self._seconds = _sum(self._seconds, seconds)

    def _end(self, end: float) -> None:
        assert self._began is not None
        held = dict.fromkeys(self._began.devices, end - self._began.at_seconds)
        self._device_seconds = _sum(self._device_seconds, held)
        self._began, self._heard_seconds = None, end


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    names = dict.fromkeys([*one, *other])
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in names}
