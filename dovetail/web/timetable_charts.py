"""Who computes which microbatch when, of every pipelined task: as it was planned, and as it was measured.

What is planned comes from the option of the task's last start as a pipeline, or of the last plan where there was none,
and from the profile that the option was made from; what is measured from the ranks' own clocks, in the last event
`timed`.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping

from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.pipeline.timetables import ASYNCHRONOUS, Simulated, recorded
from dovetail.planning.pipeline.timetables.picture import text
from dovetail.planning.techniques.base import with_layers
from dovetail.planning.techniques.pipeline import foreseen
from dovetail.store import Store
from dovetail.vocabulary import Cluster, DovetailError, Event, InvalidRecord, Option, Profile, TaskId
from dovetail.vocabulary.events import AttemptStarted, PipelineTimed
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import show_seconds

KEY = (
    "Letters are forward (F) and backward (B), or the gradients of inputs (I) and weights (W) apart, with their "
    "microbatch, and updates (U); dots are idle time."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDrawing:
    """One pipelined task: what a step should look like, and what the last one that was recorded looked like.

    >>> PipelineDrawing(task="a", timetable="1f1b", devices=("n0:0",), planned=None, measured=None, step=0).seconds
    0.0
    """

    task: str
    timetable: str
    devices: tuple[str, ...]
    planned: Simulated | None
    measured: Simulated | None
    step: int

    @property
    def seconds(self) -> float:
        """The length of the longer of both steps, so that they can be drawn to one scale."""
        return max((each.seconds for each in (self.planned, self.measured) if each), default=0.0)

    def lines(self, *, columns: int) -> Iterator[str]:
        """The planned and the measured step, one above the other, for a terminal."""
        yield f"{self.task}: {self.timetable} on {', '.join(self.devices)}"
        for title, found in self._timetables():
            yield title
            yield text(found, columns=columns, seconds=self.seconds)

    def _timetables(self) -> Iterator[tuple[str, Simulated]]:
        if self.planned is not None:
            yield _title("planned", self.planned), self.planned
        if self.measured is not None:
            yield _title(f"measured in step {self.step:,}", self.measured), self.measured


def read_timetables(
    store: Store, *, workload: str | None = None, task: str | None = None, most: int | None = None
) -> list[PipelineDrawing]:
    """Every task of a workload, or of all, or the one of that name, that was planned or run as a pipeline; the first
    so many of them, at most."""
    tasks = [each for _, each in store.tasks(workload=workload)]
    redact = Redactor((each.parameters for each in tasks), variables=os.environ)
    named = {each.identity: redact(each.name) for each in tasks if task in (None, each.name)}
    if task is not None and not named:
        raise DovetailError(f"the task must be one of those in the store; there is no {task!r}. See `dovetail show`.")
    starts, timings = _last(event for _, event in store.events() if event.task in named)
    planned = _planned_options(store, workload)
    profiles = _profiles(store)
    cluster = store.hardware("cluster", Cluster)
    found = []
    for identity, name in named.items():
        start, timed = starts.get(identity), timings.get(identity)
        option, devices = (start.option, start.devices) if start is not None else planned.get(identity, (None, ()))
        if option is not None and option.technique == "pipeline":
            is_own = timed is not None and start is not None and timed.attempt == start.attempt
            drawn = _draw(name, option, devices, timed if is_own else None, profiles, cluster)
            found += [drawn] if drawn.seconds else []
        if len(found) == most:
            break
    return found


def _profiles(store: Store) -> dict[tuple[str, str], Profile]:
    """Those that pipelines are planned from."""
    useful = [each for each in store.profiles() if each.count == 1 and each.edges]
    kinds = {each.kind for each in useful}
    return {(p.family, kind): p for kind in kinds for p in with_layers(p for p in useful if p.kind == kind)}


def _last(events: Iterable[Event]) -> tuple[dict[TaskId, AttemptStarted], dict[TaskId, PipelineTimed]]:
    """Of each task its last start as a pipeline, and what was last timed of it."""
    starts, timings = {}, {}
    for event in events:
        if isinstance(event, PipelineTimed):
            timings[event.task] = event
        elif isinstance(event, AttemptStarted) and event.option is not None and event.option.technique == "pipeline":
            starts[event.task] = event
    return starts, timings


def _planned_options(store: Store, workload: str | None) -> dict[str, tuple[Option, tuple[str, ...]]]:
    """What the last plan has for each task."""
    plans = store.plans(workload=workload)
    if not plans or plans[-1][2].schedule is None:
        return {}
    placed = plans[-1][2].schedule.placements
    return {task: (each.option, each.devices) for each in placed for task in each.tasks}


def _draw(
    name: str,
    option: Option,
    devices: tuple[str, ...],
    timed: PipelineTimed | None,
    profiles: Mapping[tuple[str, str], Profile],
    cluster: Cluster | None,
) -> PipelineDrawing:
    timetable = option.knobs.get("timetable", "1f1b")
    profile = profiles.get((option.measured_families[0], option.kind))
    planned = measured = None
    is_here = cluster is not None and {each.name for each in cluster.devices}.issuperset(devices)
    if profile is not None and cluster is not None and is_here:
        with contextlib.suppress(InvalidRecord):  # stages of layers that the family, measured anew, has no more
            planned = foreseen(profile, option.knobs, fabric=Fabric.of(cluster, devices=devices))
    if timed is not None:
        measured = recorded(timed.data(), flushes=timetable not in ASYNCHRONOUS)
    step = timed.step if timed is not None else 0
    return PipelineDrawing(
        task=name, timetable=timetable, devices=devices, planned=planned, measured=measured, step=step
    )


def _title(what: str, found: Simulated) -> str:
    return f"{what}: {show_seconds(found.seconds)}, {found.bubble_share:.0%} idle"
