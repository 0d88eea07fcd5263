"""The written report: the live page's views of a store, frozen into one file that needs no network and no server."""

import time
from pathlib import Path
from typing import Any

from dovetail.metrics.progress import ENDED
from dovetail.store import Store
from dovetail.vocabulary import TaskId
from dovetail.web import answers, task_page
from dovetail.web.frozen_page import write_page
from dovetail.web.reading import StoreReading, read_whole
from dovetail.web.snapshot import snapshot

# Of more tasks, those with the best values have their curves inside, and those that failed or run their own pages.
MOST_CURVES = 200
MOST_CURVE_POINTS = 400
MOST_DETAILS = 200
# The first and the last plans are kept whole in a store; of many placements, only the first and the last one here.
MOST_PLANS, MANY_PLACEMENTS = 9, 2000
_FIRST = {"failed": 0, "running": 1, "finished": 2}


def write_report(store: Store, path: Path, *, workload: str | None = None) -> Path:
    """Write what the store knows of one workload, or of all, as one HTML page; gives its path.

    >>> import tempfile
    >>> with Store(None, write=True) as store, tempfile.TemporaryDirectory() as folder:
    ...     write_report(store, Path(folder) / "report.html").name
    'report.html'
    """
    if workload is not None:
        store.described(workload)  # refuses one that is not there
    frozen = freeze(store, workload=workload, written_seconds=time.time())
    return write_page(path, frozen, title=frozen["title"])


def freeze(store: Store, *, workload: str | None = None, written_seconds: float) -> dict[str, Any]:
    """Everything that the page's views ask for, as plain data."""
    reading = read_whole(store, workload=workload)
    now = reading.as_of_seconds
    found = snapshot(reading, now=now)
    if all(one.status in ENDED for one in reading.progress.values()):
        found["left"] = None
    return {
        "title": ", ".join(found["workloads"]) or "nothing yet",
        "written": round(written_seconds, 3),
        "snapshot": found,
        "plans": _plans(reading, store),
        "curves": answers.curves_of(reading, store, _best_tasks(reading), most=MOST_CURVE_POINTS),
        "details": {
            task: task_page.task_of(reading, store, task, now=now, source=False) for task in _telling_tasks(reading)
        },
        "cluster": task_page.cluster_of(reading),
        "targets": answers.targets_of(reading, store),
        "why": answers.explain_outcomes(reading, store, workload=workload),
        "pipelines": answers.pipelines_of(reading, store),
    }


def _plans(reading: StoreReading, store: Store) -> dict[int, Any]:
    numbers = [plan.number for plan in reading.plans]
    wanted = numbers[:1] + numbers[1:][-(MOST_PLANS - 1) :]
    found = {number: answers.plan_of(reading, store, number) for number in wanted[:1] + wanted[-1:]}
    if all(len(plan["placements"]) <= MANY_PLACEMENTS for plan in found.values()):
        found |= {number: answers.plan_of(reading, store, number) for number in wanted[1:-1]}
    return found


def _best_tasks(reading: StoreReading) -> list[TaskId]:
    """The tasks with the best values of any metric, as many as can be."""
    ranked: dict[str, list[tuple[float, TaskId]]] = {}
    for task, metrics in reading.metrics.items():
        for name, summary in metrics.items():
            best = reading.best(task, summary)
            if best is not None:
                sign = -1.0 if reading.goal(task, name) == "max" else 1.0
                ranked.setdefault(name, []).append((sign * best, task))
    columns = [[task for _, task in sorted(each)] for each in ranked.values()]
    turns = max(map(len, columns), default=0)
    chosen = (column[turn] for turn in range(turns) for column in columns if turn < len(column))
    rest = (task for task, metrics in reading.metrics.items() if metrics)  # those that never had a finite value
    return list(dict.fromkeys([*chosen, *rest]))[:MOST_CURVES]


def _telling_tasks(reading: StoreReading) -> list[TaskId]:
    def order(task: TaskId) -> int:
        one = reading.progress.get(task)
        return _FIRST.get(one.status, len(_FIRST)) if one is not None else len(_FIRST)

    return sorted(reading.tasks, key=order)[:MOST_DETAILS]
