"""Which nodes are there, folded from events: joined, given notice, gone."""

import dataclasses
import math
from collections.abc import Iterable

from dovetail.vocabulary import Cluster, Event
from dovetail.vocabulary.node_events import DevicesJoined, DevicesLeft, NodeLeaving


@dataclasses.dataclass(slots=True, kw_only=True)
class Attendance:
    """When a node was there: since when, what it is, until when it said it would stay, and until when it did; infinite:
    it has said nothing, it is there. `back_seconds`: it is expected again then."""

    node: str
    cluster: Cluster | None = None
    joined_seconds: float
    notice_seconds: float = math.inf
    leaves_seconds: float = math.inf
    left_seconds: float = math.inf
    reason: str = ""

    @property
    def status(self) -> str:
        """`there`, `leaving` (it was given notice) or `gone`."""
        if self.left_seconds < math.inf:
            return "gone"
        return "leaving" if self.leaves_seconds < math.inf else "there"


def fold_attendance(events: Iterable[Event], found: dict[str, Attendance] | None = None) -> dict[str, Attendance]:
    """The nodes of the newest run, by name, brought up to date with these events in their order.

    >>> joined = DevicesJoined(at_seconds=5.0, devices=("n1:0",))
    >>> fold_attendance([joined, NodeLeaving(at_seconds=9.0, node="n1", leaves_seconds=60.0)])["n1"].status
    'leaving'
    """
    found = {} if found is None else found
    for event in events:
        match event:
            case DevicesJoined():
                _join(found, event)
            case NodeLeaving() if event.node in found:
                one = found[event.node]
                one.notice_seconds, one.leaves_seconds = event.at_seconds, event.leaves_seconds
                one.reason = event.reason
            case DevicesLeft():
                for node in {node_of(device) for device in event.devices} & found.keys():
                    found[node].left_seconds, found[node].reason = event.at_seconds, event.reason
    return found


def node_of(device: str) -> str:
    """The node that a device's name begins with.

    >>> node_of("n1:0")
    'n1'
    """
    return device.rpartition(":")[0]


def _join(found: dict[str, Attendance], event: DevicesJoined) -> None:
    if event.anew:
        found.clear()
    for node in dict.fromkeys(map(node_of, event.devices)):
        part = event.cluster.part([node]) if event.cluster else found[node].cluster if node in found else None
        found[node] = Attendance(node=node, cluster=part, joined_seconds=event.at_seconds)
