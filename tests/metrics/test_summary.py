"""One row for each task, the same for terminal and report."""

import math

from dovetail.metrics.curves import Curve
from dovetail.metrics.progress import Progress, Span
from dovetail.metrics.summary import Summary, row
from dovetail.vocabulary import Fingerprint, Program, Stop, Task


def summarize(tasks, *, progress, curves=None, as_of_seconds) -> Summary:
    known = curves or {}
    rows = [
        row(
            task, progress=progress.get(task.identity), curves=known.get(task.identity, {}), as_of_seconds=as_of_seconds
        )
        for i, task in ((task.identity, task) for task in tasks)
    ]
    return Summary(rows=tuple(rows))


def make(name: str, stop: Stop | None = None) -> Task:
    return Task(name=name, program=Program(reference="a.py:f"), stop=stop or Stop(steps=200), parameters={"seed": 1})


def curve(name: str, *values: float) -> Curve:
    steps = tuple(range(1, len(values) + 1))
    return Curve(name=name, steps=steps, values=values, at_seconds=tuple(map(float, steps)))


def span(start: float, end: float | None) -> Span:
    return Span(
        placement="p", devices=("n0:0",), start_seconds=start, end_seconds=end,
        from_step=0, until_step=100, predicted_seconds=1.0,
    )  # fmt: skip


def test_a_row_has_everything():
    task = make("a")
    progress = Progress(task=task.identity, status="running", attempt=2, step=50, spans=[span(0, 10), span(15, None)])
    found = {"loss": curve("loss", 0.9, 0.4, float("nan")), "accuracy": curve("accuracy", 0.2, 0.6, 0.5)}
    made = summarize([task], progress={task.identity: progress}, curves={task.identity: found}, as_of_seconds=20.0)
    (row,) = made.rows
    assert (row.name, row.status, row.step, row.last_step, row.done_share) == ("a", "running", 50, 200, 0.25)
    assert (row.trained_seconds, row.attempts, dict(row.parameters)) == (15.0, 2, {"seed": 1})
    assert math.isnan(row.metrics["loss"].last)
    assert (row.metrics["loss"].best, row.metrics["loss"].best_step) == (0.4, 2)
    assert (row.metrics["accuracy"].last, row.metrics["accuracy"].best) == (0.5, 0.6)


def test_a_task_without_events_is_pending():
    (row,) = summarize([make("a")], progress={}, as_of_seconds=0.0).rows
    assert (row.status, row.step, row.attempts, row.trained_seconds) == ("pending", 0, 0, 0.0)


def test_epochs_become_steps_once_known():
    task = make("a", Stop(epochs=3))
    known = Progress(task=task.identity, fingerprint=Fingerprint(family="f", steps_per_epoch=10))
    assert summarize([task], progress={}, as_of_seconds=0.0).rows[0].last_step is None
    assert summarize([task], progress={task.identity: known}, as_of_seconds=0.0).rows[0].last_step == 30


def test_a_metric_that_never_was_finite_has_no_best():
    task = make("a")
    found = {"loss": curve("loss", float("nan"), float("inf"))}
    (row,) = summarize([task], progress={}, curves={task.identity: found}, as_of_seconds=0.0).rows
    assert (row.metrics["loss"].last, row.metrics["loss"].best, row.metrics["loss"].best_step) == (math.inf, None, None)


def test_counts_leave_out_former_tasks():
    tasks = [make("a"), make("b"), make("c")]
    states = [("finished", False), ("failed", False), ("running", True)]
    progress = {
        task.identity: Progress(task=task.identity, status=status, vanished=vanished)
        for task, (status, vanished) in zip(tasks, states, strict=True)
    }
    made = summarize(tasks, progress=progress, as_of_seconds=0.0)
    assert len(made.rows) == 3
    assert (made.total, made.counts["finished"], made.counts["failed"], made.counts["running"]) == (2, 1, 1, 0)
    assert made.ended


def test_losses_are_named_first():
    task = make("a")
    found = {name: curve(name, 0.5) for name in ("accuracy", "valid_loss", "bleu")}
    made = summarize([task], progress={}, curves={task.identity: found}, as_of_seconds=0.0)
    assert made.metrics == ("valid_loss", "accuracy", "bleu")
    assert Summary().metrics == ()
