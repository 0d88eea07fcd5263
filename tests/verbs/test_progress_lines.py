"""Lines for a log file: a change, the whole at a fair pace, failures and the end always."""

import dataclasses
import types

from dovetail.metrics.progress import Progress, Span
from dovetail.verbs import progress_lines
from dovetail.verbs.progress_lines import CHANGES, PACE_SECONDS, SLOW_PACE_SECONDS, ProgressLines
from dovetail.vocabulary import Plan, Schedule
from tests.control.simulations import task


@dataclasses.dataclass
class Watched:
    """As much of a controller as lines are made of."""

    names: list[str]
    phase: str = "running"
    trials_left: int = 0
    source: None = None
    plans: list = dataclasses.field(default_factory=lambda: [(0.0, Plan(schedule=Schedule(placements=())))])

    def __post_init__(self):
        self.tasks = {name: task(name) for name in self.names}
        self.progress = {name: Progress(task=name) for name in self.names}

    def now(self):
        return 0.0

    def name_of(self, task):
        return self.tasks[task].name

    def set(self, name, status, **fields):
        span = Span(placement="p", devices=("n0:0",), start_seconds=0, from_step=0, until_step=100, predicted_seconds=1)
        self.progress[name] = Progress(task=name, status=status, spans=[span], **fields)


def watching(count):
    clock, written = types.SimpleNamespace(seconds=0.0), []
    return (
        Watched([f"t{n}" for n in range(count)]),
        ProgressLines(written.append, now=lambda: clock.seconds),
        clock,
        written,
    )


def test_changes_are_told_and_the_whole_at_a_pace():
    watched, lines, clock, written = watching(2)
    watched.set("t0", "running", step=5, metrics={"train/loss": 2.0, "accuracy": 0.5})
    for clock.seconds in (0.0, 1.0, PACE_SECONDS - 1):
        lines.show(watched)
    assert written == ["t0 running at step 5"]
    clock.seconds = PACE_SECONDS
    lines.show(watched)
    assert written[1:] == ["0 of 2 tasks done, 1 running, 1 left · t0 at 5/100, accuracy 0.5 · a moment left"]
    clock.seconds += PACE_SECONDS - 1
    lines.show(watched)
    assert len(written) == 2


def test_after_minutes_the_pace_is_slower():
    watched, lines, clock, written = watching(1)
    clock.seconds = progress_lines.SLOW_AFTER_SECONDS + 1
    lines.show(watched)
    clock.seconds += PACE_SECONDS
    watched.set("t0", "running", step=7)
    lines.show(watched)
    assert len(written) == 2  # the whole, the change
    clock.seconds += SLOW_PACE_SECONDS
    lines.show(watched)
    assert written[-1].startswith("0 of 1 tasks done, 1 running, 0 left · t0 at 7/100")


def test_of_very_many_changes_the_rest_is_counted_and_no_failure_is_lost():
    watched, lines, clock, written = watching(CHANGES + 10)
    for name in watched.names:
        watched.set(name, "running")
    watched.set(watched.names[-1], "failed", reason="it broke")
    lines.show(watched)
    assert len(written) == CHANGES + 1
    assert written[-1] == f"{watched.names[-1]} failed at step 0: it broke"
    clock.seconds = PACE_SECONDS
    lines.show(watched)
    assert "9 more changes" in written[-1]
    assert ", 1 failed · " in written[-1]


def test_the_end_is_told_at_once_and_once():
    watched, lines, _, written = watching(1)
    watched.set("t0", "finished", step=100)
    watched.phase = "done"
    lines.show(watched)
    lines.show(watched)
    assert written == ["t0 finished at step 100", "1 of 1 tasks done, 0 running, 0 left"]
