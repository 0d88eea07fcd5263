"""What came of a workload, read from its store."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.control.searching.study_file import read_study, study_path
from dovetail.metrics.progress import ATTEMPT_ENDS, Progress, fold
from dovetail.metrics.task_rows import choose_metrics, flatten
from dovetail.store import Folder, Store, checkpoints_of
from dovetail.vocabulary import DovetailError, Event, Task, TaskId
from dovetail.vocabulary.events import RUN_BEGAN, ApproximationJudged, CheckpointDamaged, PlanMade, TaskFailed, Warned
from dovetail.vocabulary.notebook_html import html_lines, html_table
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import show_seconds, show_some
from dovetail.vocabulary.user_text import escape_controls
from dovetail.vocabulary.work import suggest_goal

if TYPE_CHECKING:
    import optuna
    import pandas
    from torch import nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One task and what came of it: `metrics` are the last ones, `history` all of them by step.

    Of a task that failed, `reason` says why and in which file and line, `phase` what raised (`building`, `training` or
    `evaluation`, empty where that is not known), and `traceback` has all of it. `best_step` is that of the checkpoint
    which `Training.keep_best` has kept, if any, and `data_share` the part of its steps in which it waited for data.
    """

    task: Task
    status: str
    step: int
    reason: str
    metrics: Mapping[str, float]
    history: Mapping[str, tuple[tuple[int, float], ...]]
    home: Path
    phase: str = ""
    traceback: str = ""
    best_step: int | None = None
    data_share: float = 0.0

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def directory(self) -> Folder:
        """Where its checkpoints are."""
        return checkpoints_of(self.home) / self.task.identity

    def value(self, metric: str, *, last: bool = False) -> float:
        """What a metric is with the weights that `model` gives: its value at the best checkpoint where
        `Training.keep_best` has one kept, else, or with `last`, its last value. NaN where it has none."""
        until = math.inf if last or self.best_step is None else self.best_step
        return next((value for step, value in reversed(self.history.get(metric, ())) if step <= until), math.nan)

    def model(self, *, last: bool = False) -> "nn.Module":
        """The trained model: built by its program, with the weights of the best checkpoint where `Training.keep_best`
        has one kept, else, or with `last`, of the newest. Imports torch."""
        from dovetail.train.export import load_model

        return load_model(self.task, self.directory, home=self.home, last=last)

    def export(self, path: str | Path, *, last: bool = False) -> Path:
        """Write the trained model, as `model` gives it, to `path`: a directory through `save_pretrained` where the
        model has it, else one safetensors file."""
        from dovetail.train.export import export

        return export(self.task, self.directory, Path(path), home=self.home, last=last)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a workload. `planned_seconds` and `makespan_seconds` are of its last run: what its first plan said,
    and the time from that plan to the last end.

    `result["name"]` is the task of that name; `print(result)` shows them all.

    >>> import tempfile
    >>> from dovetail.store import Point
    >>> from dovetail.vocabulary import Program, Stop
    >>> tasks = [Task(name=name, program=Program(reference="a.py:f"), stop=Stop(steps=9)) for name in ("a", "b")]
    >>> scores = {"name": "accuracy", "step": 9, "at_seconds": 0.0}
    >>> points = [Point(task=task.identity, value=0.8 + n / 10, **scores) for n, task in enumerate(tasks)]
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with Store(Path(home), write=True) as store:
    ...         store.add(tasks=[("digits", task) for task in tasks], points=points)
    ...     result = open_result(home)
    >>> result.best("accuracy").name, result["a"].metrics["accuracy"]
    ('b', 0.8)
    >>> list(result.frame().columns)
    ['task', 'id', 'status', 'step', 'reason', 'accuracy']
    """

    workload: str
    tasks: tuple[TaskResult, ...]
    makespan_seconds: float
    planned_seconds: float
    warnings: tuple[str, ...]
    home: Path
    judged: tuple[str, ...] = ()
    """Of each family whose approximations were to keep to tolerances: whether they do, why, and what it took."""

    def best(self, metric: str, *, goal: str | None = None, last: bool = False) -> TaskResult:
        """The task whose metric is best; `goal` is max or min: without it what tasks were to reach, else what the
        metric's name says, as of a loss, else max. Compared is its value with the weights that `model` and
        `export` give: at the best checkpoint where `Training.keep_best` has one kept, else, or with `last`, at the last
        evaluation. NaN is never best."""
        stated = {task.task.stop.direction for task in self.tasks if task.task.stop.metric == metric}
        goal = goal or (stated.pop() if len(stated) == 1 else None) or suggest_goal(metric) or "max"
        if goal not in ("max", "min"):
            raise DovetailError(f"goal must be 'max' or 'min', got {goal!r}.")
        scored = [task for task in self.tasks if not math.isnan(task.value(metric, last=last))]
        if not scored:
            known = sorted({name for task in self.tasks for name in task.metrics})
            raise DovetailError(f"some task must have reported {metric!r} as a number; reported were {known}.")
        sign = 1.0 if goal == "max" else -1.0
        return max(scored, key=lambda task: sign * task.value(metric, last=last))

    def frame(self, *, history: bool = False) -> "pandas.DataFrame":
        """The tasks as a pandas DataFrame: a row for each, with its status, step, parameters and last metrics. With
        `history`, a row for each value that a metric had: its step, its name and the value.

        A metric with the name of a parameter is called `metric/...`.
        """
        try:
            import pandas
        except ImportError as error:
            raise DovetailError("a frame must have pandas, which is not installed. Run: pip install pandas") from error
        if not history:
            return pandas.DataFrame([flatten(row) for row in table(self)])
        return pandas.DataFrame(
            [
                flatten({"task": task.name, "step": step, "metric": name, "value": value, **_parameters(task)})
                for task in self.tasks
                for name, points in task.history.items()
                for step, value in points
            ]
        )

    @property
    def is_search(self) -> bool:
        """Whether its tasks were asked for by a search."""
        return study_path(self.home, self.workload).exists()

    def study(self) -> "optuna.Study":
        """The Optuna study of a search, for `optuna.visualization` and whatever else takes one. Its trials have the
        name of their task as user attribute `task`."""
        return read_study(self.home, self.workload)

    def __getitem__(self, name: str) -> TaskResult:
        for task in self.tasks:
            if task.name == name:
                return task
        redact = Redactor(task.task.parameters for task in self.tasks)
        raise DovetailError(redact(f"the task must be one of {[task.name for task in self.tasks]}, got {name!r}."))

    def __str__(self) -> str:
        redact = Redactor(task.task.parameters for task in self.tasks)
        rows = [
            f"{redact(task.name):<40} {task.status:<9} {task.step:>8}  "
            + redact(task.reason if task.status == "failed" else _shown(task.metrics))
            for task in self.tasks
        ]
        return escape_controls("\n".join(rows))

    def _repr_html_(self) -> str:
        """What a notebook shows: every task with its status, its last metrics and, where it failed, the reason."""
        redact = Redactor(task.task.parameters for task in self.tasks)
        rows = redact.record(table(self))
        metrics = choose_metrics(rows, None)
        cells = [
            (
                row["task"],
                row["status"],
                row["step"],
                *(f"{row['metrics'][name]:.4g}" if name in row["metrics"] else "" for name in metrics),
                row["reason"],
            )
            for row in rows
        ]
        taken = f"planned {show_seconds(self.planned_seconds)}, took {show_seconds(self.makespan_seconds)}"
        lines = (
            [taken] * (self.makespan_seconds > 0)
            + [redact(text) for text in self.judged]
            + [f"warning: {redact(text)}" for text in self.warnings]
        )
        return html_table(("task", "status", "step", *metrics, ""), cells) + html_lines(lines)


def _parameters(task: TaskResult) -> dict[str, Any]:
    return {"parameters": dict(task.task.parameters)}


def _shown(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def open_result(store: str | Path = ".dovetail", *, workload: str | None = None) -> Result:
    """What a store holds of a workload (None: of all its tasks that are still in their files).

    Reads only, so it may be called while the workload runs. `Result` has a longer example.

    >>> open_result("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dovetail.vocabulary.errors.StoreError: there must be a store at nowhere; found none. Run something first, ...
    """
    home = Path(store)
    with Store(home) as opened:
        events = [event for _, event in opened.events()]
        progress = fold(events)
        tasks = [
            task
            for _, task in opened.described(workload)
            if not progress.get(task.identity, Progress(task=TaskId(""))).vanished
        ]
        results = tuple(result_of(task, progress.get(task.identity), opened, home) for task in tasks)
        warnings = _warnings(events, {task.identity: task.name for task in tasks})
    planned, taken = _last_run(events, {task.identity for task in tasks}, workload)
    return Result(
        workload=workload or "all",
        tasks=results,
        makespan_seconds=taken,
        planned_seconds=planned,
        warnings=warnings,
        home=home,
        judged=_judged(events, progress, tasks),
    )


def _judged(events: Iterable[Event], progress: Mapping[TaskId, Progress], tasks: Iterable[Task]) -> tuple[str, ...]:
    """What pairs of trainings said last of each family of these tasks."""
    names: dict[str, list[str]] = {}
    for task in tasks:
        known = progress[task.identity].fingerprint if task.identity in progress else None
        if known is not None:
            names.setdefault(known.family, []).append(task.name)
    found = {(each.family, each.approximate): each for each in events if isinstance(each, ApproximationJudged)}
    return tuple(
        f"{show_some(names[each.family])}: {'may be' if each.keeps else 'stays exact, not'} trained with "
        f"{each.approximate}: {each.why}, with 95% confidence; that took {show_seconds(each.seconds)}"
        for each in found.values()
        if each.family in names
    )


def _last_run(events: Iterable[Event], tasks: Collection[TaskId], workload: str | None) -> tuple[float, float]:
    """What the first plan of the last run predicted, and how long that run took until the last end of an attempt in it.
    What belongs to a run is told by the order of events: the machine's clock may have been set between two runs, within
    one the engine's own clock goes on."""
    planned, since, ended = 0.0, math.inf, -math.inf
    for event in events:
        if isinstance(event, PlanMade) and event.because.startswith(RUN_BEGAN) and workload in (None, event.workload):
            planned, since, ended = event.makespan_seconds, event.at_seconds, -math.inf
        elif isinstance(event, ATTEMPT_ENDS) and event.attempt and event.task in tasks:
            ended = max(ended, event.at_seconds)
    return planned, max(0.0, ended - since) if math.isfinite(ended - since) else 0.0


def _warnings(events: Iterable[Event], names: Mapping[str, str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for event in events:
        if event.task not in names:
            continue
        match event:
            case CheckpointDamaged(reason=reason):
                said = f"a damaged checkpoint was set aside, the one before was used: {reason}"
            case Warned(message=said):
                pass
            case _:
                continue
        found[f"{names[event.task]}: {said}"] = None
    return tuple(found)


def result_of(task: Task, progress: Progress | None, store: Store, home: Path) -> TaskResult:
    """What came of one task."""
    history: dict[str, list[tuple[int, float]]] = {}
    for point in store.points(task.identity):
        history.setdefault(point.name, []).append((point.step, point.value))
    one = progress or Progress(task=task.identity)
    failure = _last_failure(store, task.identity) if one.status == "failed" else None
    return TaskResult(
        task=task,
        status=one.status,
        step=one.step,
        reason=one.reason,
        metrics={name: values[-1][1] for name, values in history.items()},
        history={name: tuple(values) for name, values in history.items()},
        home=home,
        phase=failure.phase if failure else "",
        traceback=failure.log if failure else "",
        best_step=one.best_step,
        data_share=one.data_share,
    )


def _last_failure(store: Store, task: TaskId) -> TaskFailed | None:
    failures = [event for _, event in store.events(task=task) if isinstance(event, TaskFailed)]
    return failures[-1] if failures else None


def table(result: Result) -> list[dict[str, Any]]:
    """A result as rows of plain data, for `--json`."""
    return [
        {
            "task": task.name,
            "id": task.task.identity,
            "status": task.status,
            "step": task.step,
            "reason": task.reason,
            **({"data_share": task.data_share} if task.data_share else {}),
            **({"phase": task.phase, "traceback": task.traceback} if task.status == "failed" else {}),
            "metrics": dict(task.metrics),
            **_parameters(task),
        }
        for task in result.tasks
    ]
