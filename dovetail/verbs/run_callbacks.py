"""Functions of the user's that are told, in the process that called `dt.run`, what tasks report. They read: what they
do changes nothing of a training. Knows events; knows nothing of tables or pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from dovetail.control import Controller, TaskResult
from dovetail.control.result import result_of
from dovetail.metrics.progress import ENDED
from dovetail.vocabulary import Event, Task
from dovetail.vocabulary.events import StepsDone

OnMetric = Callable[[Task, str, int, float], object]
OnEvaluate = Callable[[Task, int, Mapping[str, float]], object]
OnEnd = Callable[[TaskResult], object]


class RunCallbacks:
    """Tells `on_metric` of each value of a metric, `on_evaluate` of each evaluation, `on_end` of each task that has
    ended in this run. Steps that are repeated after a loss are told once.

    The first error that one of them raises asks the controller to save and stop, and `check` raises it again: half a
    log is found out, and no training is lost by it.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        home: Path,
        on_metric: OnMetric | None = None,
        on_evaluate: OnEvaluate | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self._controller, self._home = controller, home
        self._error: Exception | None = None
        self._on_metric, self._on_evaluate, self._on_end = on_metric, on_evaluate, on_end
        self._steps: dict[tuple[str, str], int] = {}  # the last one told, by task and metric
        self._ended = {task for task, one in controller.progress.items() if one.status in ENDED}
        if on_metric or on_evaluate or on_end:
            controller.listen(self._hear)

    def check(self) -> None:
        """Raise what a callback has raised."""
        if self._error is not None:
            raise self._error

    def _hear(self, events: Sequence[Event]) -> None:
        if self._error is not None:
            return
        try:
            for event in events:
                if event.task in self._controller.tasks:
                    self._tell(event)
        except Exception as error:
            self._error = error
            self._controller.post("stop", reason=f"a callback raised {type(error).__name__}: {error}")

    def _tell(self, event: Event) -> None:
        task = self._controller.tasks[event.task]
        if isinstance(event, StepsDone):
            self._tell_points(task, event.points)
        one = self._controller.progress[event.task]
        if self._on_end is not None and one.status in ENDED and event.task not in self._ended:
            self._ended.add(event.task)
            self._on_end(result_of(task, one, self._controller.store, self._home))

    def _tell_points(self, task: Task, points: Iterable[Sequence[object]]) -> None:
        evaluated: dict[int, dict[str, float]] = {}
        for name, step, value in points:
            assert isinstance(name, str)
            assert isinstance(step, int)
            assert isinstance(value, int | float)
            if step <= self._steps.get((task.identity, name), -1):
                continue
            self._steps[task.identity, name] = step
            if self._on_metric is not None:
                self._on_metric(task, name, step, value)
            if not name.startswith("train/"):
                evaluated.setdefault(step, {})[name] = value
        if self._on_evaluate is not None:
            for step, metrics in evaluated.items():
                self._on_evaluate(task, step, metrics)
