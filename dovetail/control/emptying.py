"""Emptying nodes that leave with a notice: what would not end in time is saved and stopped, nothing more begins there.

Half of the notice is for training: whatever is expected to end within it does, and the rest is for saving. Without
that, a task of one minute would be stopped by a notice of ten. Knows nothing of who gave the notice; the loop stops
what is `unwanted` and takes up what is `emptied`.
"""

import dataclasses
import math
from collections.abc import Iterator

from dovetail.control.state import State
from dovetail.vocabulary.node_events import NodeLeaving
from dovetail.vocabulary.units import show_seconds

TRAINING_SHARE = 0.5


@dataclasses.dataclass(slots=True, kw_only=True)
class _Notice:
    devices: frozenset[str]
    saves_at: float
    reason: str


class Emptying:
    """The nodes that were given notice and still hold something. Called by the loop alone, from its thread."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._notices: dict[str, _Notice] = {}
        self._told: set[str] = set()

    def begin(self, event: NodeLeaving) -> None:
        """A node will be gone: plan without it, and let what runs there end or be saved."""
        state, devices = self._state, self._state.devices_of(event.node)
        now = state.now()
        left = max(0.0, event.leaves_seconds - now)
        why = f": {event.reason}" if event.reason else ""
        self._notices[event.node] = _Notice(
            devices=frozenset(devices),
            saves_at=now + TRAINING_SHARE * left,
            reason=f"node {event.node} leaves in {show_seconds(left)}{why}",
        )
        state.leave(devices, for_good=False)

    def end(self, node: str) -> None:
        """A node is gone, or stays after all."""
        self._notices.pop(node, None)

    def unwanted(self) -> Iterator[tuple[str, str, bool]]:
        """The orders that are to end now, each with the reason, and whether they have something to save."""
        now, state = self._state.now(), self._state
        for name, running in state.running.items():
            for notice in self._notices.values():
                if name not in self._told and notice.devices.intersection(running.order.devices):
                    if running.placement is not None and now + state.remaining_seconds(running) < notice.saves_at:
                        continue  # asked again at the next turn of the loop
                    self._told.add(name)
                    yield name, notice.reason, running.order.purpose == "train"
        self._told &= state.running.keys()

    def emptied(self) -> list[str]:
        """The nodes on which nothing runs any more; each is given once."""
        busy = {device for running in self._state.running.values() for device in running.order.devices}
        found = [node for node, notice in self._notices.items() if notice.devices.isdisjoint(busy)]
        for node in found:
            del self._notices[node]
        return found

    def wake_seconds(self) -> float:
        """When the next node's time for training is over, on the engine's clock; infinite: none is to be emptied."""
        now = self._state.now()
        return min((each.saves_at for each in self._notices.values() if each.saves_at > now), default=math.inf)
