"""What was possible with the nodes that came and went in a store's newest run: the same tasks, at the speeds that were
measured, by the same loop on a virtual clock, where starting, saving and joining take no time; and once more with steps
as slow as they really were.

The real run is judged by it: what it took longer is what starting, losing and deciding on a real cluster cost, and by
the first also what made steps slower than they were when they were measured, such as others on the same machine.
"""

import dataclasses
import math
from collections.abc import Iterable

from dovetail.control.loop import Controller
from dovetail.control.settings import Settings
from dovetail.control.simulation.simulating import ALWAYS, StallGuard, arriving_task, make_world
from dovetail.control.state.snapshot import Offers
from dovetail.describe.traces import Arrival
from dovetail.engines import Outage, SimulatedEngine
from dovetail.metrics.attendance import Attendance, fold_attendance
from dovetail.metrics.progress import fold
from dovetail.planning import PLANNERS
from dovetail.store import Store
from dovetail.vocabulary import Cluster, DovetailError, Event, Profile, Workload
from dovetail.vocabulary.events import AttemptStarted, AttemptStopped, DevicesReleased, TaskFinished
from dovetail.vocabulary.node_events import DevicesJoined, NodeLeaving

# Saving takes no time there, so that next to nothing is lost with a node that vanishes.
_SAVE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeReplay:
    """How long a run really took, from its first start to its last end, and what was possible on the same nodes: by the
    speeds that were measured, and, `paced_seconds`, by those that steps then had.

    >>> NodeReplay(tasks=8, nodes=3, real_seconds=120.0, possible_seconds=96.0, paced_seconds=100.0).over_paced
    1.2
    """

    tasks: int
    nodes: int
    real_seconds: float
    possible_seconds: float
    paced_seconds: float

    @property
    def over(self) -> float:
        """How many times as long as was possible it took."""
        return self.real_seconds / self.possible_seconds

    @property
    def over_paced(self) -> float:
        """The same by the speeds that steps had."""
        return self.real_seconds / self.paced_seconds


def replay_nodes(store: Store) -> NodeReplay:
    """Replay the newest run of a store on the nodes that it had."""
    events = _newest_run([event for _, event in store.events()])
    attendance = fold_attendance(events)
    spans = [span for one in fold(events).values() for span in one.spans]
    ended = [event.at_seconds for event in events if event.kind == "finished"]
    if not (attendance and spans and ended):
        raise DovetailError(
            "a store to replay must have a run on a Ray cluster in which tasks were trained; this one has none."
        )
    began = min(span.start_seconds for span in spans)
    cluster = _everything(attendance)
    arrivals = _arrivals(store, events)
    profiles = list(store.profiles())
    possible, paced = (
        _simulate(arrivals, profiles, cluster, attendance, began, slowness=slowness)
        for slowness in (1.0, _slowness(events))
    )
    return NodeReplay(
        tasks=len(arrivals),
        nodes=len(attendance),
        real_seconds=max(ended) - began,
        possible_seconds=possible,
        paced_seconds=paced,
    )


def _slowness(events: list[Event]) -> float:
    """How many times as long as was predicted steps took, in what ended by itself; 1 where nobody has counted."""
    began: dict[str, AttemptStarted] = {}
    ends: dict[str, int] = {}
    taken = predicted = 0.0
    for event in events:
        match event:
            case AttemptStarted():
                began[event.placement] = event
            case TaskFinished() | AttemptStopped():
                ends[event.task] = event.step
            case DevicesReleased() if (one := began.get(event.placement)) and one.option and one.task in ends:
                if "step" in event.seconds:
                    taken += event.seconds["step"] + event.seconds.get("data", 0.0)
                    predicted += (ends[one.task] - one.step) * one.option.step_seconds[0]
    return taken / predicted if predicted > 0 else 1.0


def _newest_run(events: list[Event]) -> list[Event]:
    first = max((n for n, event in enumerate(events) if isinstance(event, DevicesJoined) and event.anew), default=0)
    return events[first:]


def _everything(attendance: dict[str, Attendance]) -> Cluster:
    """The cluster of all nodes that were there at any time."""
    parts = [one.cluster for one in attendance.values() if one.cluster is not None]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined_by(part)
    return whole


def _arrivals(store: Store, events: list[Event]) -> list[Arrival]:
    """The tasks that were trained in the run, each with the steps that it took."""
    known, progress = fold(event for _, event in store.events()), fold(events)
    names = {task.identity: task.name for _, task in store.tasks()}
    return [
        Arrival(
            task=names[task],
            family=fingerprint.family,
            steps=max(1, known[task].step - one.spans[0].from_step),
            at_seconds=0.0,
        )
        for task, one in progress.items()
        if one.spans and task in names and (fingerprint := known[task].fingerprint) is not None
    ]


def _simulate(
    arrivals: list[Arrival],
    profiles: Iterable[Profile],
    cluster: Cluster,
    attendance: dict[str, Attendance],
    began: float,
    *,
    slowness: float,
) -> float:
    tasks = {arrival.task: arriving_task(arrival) for arrival in arrivals}
    world = make_world(arrivals, tasks, (), cluster, blind=False)
    notices = [
        NodeLeaving(at_seconds=one.notice_seconds - began, node=one.node, leaves_seconds=one.leaves_seconds - began)
        for one in attendance.values()
        if one.notice_seconds < math.inf
    ]
    outages = [outage for one in attendance.values() for outage in _absences(one, began)]
    world = dataclasses.replace(
        world, paces=None, slowness=lambda order: slowness, outages=outages, happenings=[*world.happenings, *notices]
    )
    kinds = {device.name: device.kind for device in cluster.devices}
    engine = SimulatedEngine(world, kind_of=kinds.__getitem__)
    with Store(None, write=True) as kept:
        kept.add(profiles=profiles)
        Controller(
            Workload(name="replay", tasks=tuple(tasks.values())),
            cluster=cluster,
            store=kept,
            engine=engine,
            settings=Settings(retries=ALWAYS, save_every_seconds=_SAVE_SECONDS),
            planner=PLANNERS["proportionate"],
            offers=Offers(()),  # what is to be known is known: nothing is measured
            observe=StallGuard(engine, lambda controller: None),
        ).run()
    return engine.now()


def _absences(one: Attendance, began: float) -> list[Outage]:
    """When a node was not there."""
    devices = tuple(device.name for device in one.cluster.devices) if one.cluster else ()
    joined, left = one.joined_seconds - began, one.left_seconds - began
    before = [Outage(devices=devices, at_seconds=0.0, back_seconds=joined)] if joined > 0 else []
    return [*before, *([Outage(devices=devices, at_seconds=left)] if left < math.inf else [])]
