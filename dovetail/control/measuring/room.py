"""Which placements are in the way of an order that wants devices now. Pure; the loop asks them to save and end."""

from dovetail.control.state import Running, State
from dovetail.engines import Order
from dovetail.planning.room import Room


def in_the_way(order: Order, state: State) -> list[str]:
    """The fewest placements whose end gives one node enough free devices of the order's kind, or each of as many as it
    goes over; of those of least priority, the ones that began last. None where enough are free, or never will be."""
    kind, wanted = state.cluster.device(order.devices[0]).kind, len(order.devices) // order.nodes
    by_worth = sorted(state.running.items(), key=lambda pair: _worth(pair[1], state))
    placed = [(name, running) for name, running in by_worth if running.placement is not None]
    room = state.queues.room
    devices = room.numbers(device.name for device in state.cluster.of_kind(kind))
    found = (_on_node(node, kind, wanted, placed, room.copy()) for node in sorted({room.node_of[n] for n in devices}))
    fewest = sorted((names for names in found if names is not None), key=len)[: order.nodes]
    return list(dict.fromkeys(name for names in fewest for name in names)) if len(fewest) == order.nodes else []


def _on_node(node: int, kind: str, wanted: int, placed: list[tuple[str, Running]], room: Room) -> list[str] | None:
    """The first of these placements whose devices, given back, are enough; None where all of them are not."""
    names, free = list[str](), room.count_free(kind, node)
    for name, running in placed:
        if free >= wanted:
            break
        room.give(running.option, room.numbers(running.order.devices))
        before, free = free, room.count_free(kind, node)
        names += [name] if free > before else []
    return names if free >= wanted else None


def _worth(running: Running, state: State) -> tuple[float, float]:
    return max(state.ledger[task].priority for task in running.tasks), -running.started_at
