"""Which placements are in the way of an order that wants devices now. Pure; the loop asks them to save and end."""

from dovetail.control.state import Running, State
from dovetail.engines import Order


def in_the_way(order: Order, state: State) -> list[str]:
    """The fewest placements whose end gives one node enough free devices of the order's kind; of those of least
    priority, the ones that began last. None where enough are free, or never will be."""
    kind, wanted = state.cluster.device(order.devices[0]).kind, len(order.devices)
    nodes: dict[str, set[str]] = {}
    for device in state.cluster.of_kind(kind):
        nodes.setdefault(device.node, set()).add(device.name)
    found = [each for devices in nodes.values() if (each := _on_node(devices, wanted, kind, state)) is not None]
    return min(found, key=len, default=[])


def _on_node(devices: set[str], wanted: int, kind: str, state: State) -> list[str] | None:
    free = len(devices & set(state.queues.free(kind)))
    names = []
    for name, running in sorted(state.running.items(), key=lambda pair: _worth(pair[1], state)):
        if free >= wanted:
            break
        if running.placement is not None and devices & set(running.order.devices):
            free += len(devices & set(running.order.devices))
            names.append(name)
    return names if free >= wanted else None


def _worth(running: Running, state: State) -> tuple[float, float]:
    return max(state.ledger[task].priority for task in running.tasks), -running.started_at
