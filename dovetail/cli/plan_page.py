"""A plan as a page and as drawn timetables: what a report would show, with nothing run yet."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.store import Store
from dovetail.vocabulary import Plan

if TYPE_CHECKING:
    from dovetail.web.timetable_charts import PipelineDrawing


def write_plan(found: Plan, path: Path, *, store: Path) -> Path:
    """Write a plan as the page that a report is, with nothing run yet; gives its path. `store` has the profiles."""
    from dovetail.web.report import write_report

    with _plan_store(found, store) as opened:
        return write_report(opened, path)


def timetables(found: Plan, *, store: Path) -> "list[PipelineDrawing]":
    """The pipelines of a plan as they are to run, from what was measured in `store`."""
    from dovetail.web.timetable_charts import read_timetables

    assert found.schedule is not None
    if all(each.option.technique != "pipeline" for each in found.schedule.placements):
        return []
    with _plan_store(found, store) as opened:
        return read_timetables(opened)


@contextlib.contextmanager
def _plan_store(found: Plan, store: Path) -> Iterator[Store]:
    """A store with this plan, as if a controller had made it, and nothing run yet."""
    assert found.workload is not None
    name = found.workload.name
    with Store(store) as measured:
        profiles = measured.profiles()
    with Store(None, write=True) as opened:
        tasks = [(name, task) for task in found.workload.tasks]
        opened.add(tasks=tasks, hardware=[("cluster", found.cluster)], profiles=profiles)
        opened.add_plan(found, workload=name, at_seconds=0.0)
        yield opened
