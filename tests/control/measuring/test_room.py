"""Who makes room for an order that measures: as few as possible, on one node, on devices that are there."""

import pytest

from dovetail.control import Settings
from dovetail.control.measuring.room import in_the_way
from dovetail.control.state import Running, State
from dovetail.engines import MemberOrder, Order
from dovetail.store import Store
from dovetail.vocabulary import Option, Placement
from tests.control.simulations import cluster, task, workload


def ordered(name, devices, *, purpose="train"):
    members = tuple(MemberOrder(task=task(each)) for each in name.split("+"))
    return Order(name=name, purpose=purpose, members=members, devices=devices)


def runs(state, name, devices, *, started_at=0.0, measures=False):
    """Something that trains or measures on devices."""
    families = ("f",) * len(name.split("+"))
    option = Option(
        families=families, technique="resident", kind="sim", count=len(devices), step_seconds=(1.0,) * len(families)
    )
    placement = Placement(
        tasks=tuple(name.split("+")), steps=(9,) * len(families), option=option, devices=devices,
        start_seconds=0.0, duration_seconds=9.0,
    )  # fmt: skip
    state.queues.occupy(devices, None if measures else option)
    state.running[name] = Running(
        order=ordered(name, devices),
        option=None if measures else option,
        placement=None if measures else placement,
        started_at=started_at,
    )


@pytest.fixture
def state():
    names = [task(name) for name in ("a", "b", "c", "d")]
    with Store(None, write=True) as store:
        yield State(workload(*names), cluster=cluster(2, nodes=2), store=store, settings=Settings(), now=lambda: 10.0)


def test_nobody_where_enough_is_free(state):
    runs(state, "a", ("n0:0",))
    assert in_the_way(ordered("d", ("n0:0", "n0:1"), purpose="measure"), state) == []


def test_the_one_that_began_last_makes_room(state):
    for start, (name, device) in enumerate([("a", "n0:0"), ("b", "n0:1"), ("c", "n1:0"), ("d", "n1:1")]):
        runs(state, name, (device,), started_at=start)
    assert in_the_way(ordered("d", ("n0:0",), purpose="measure"), state) in (["b"], ["d"])


def test_the_node_where_the_fewest_are_in_the_way(state):
    runs(state, "a", ("n0:0",))
    runs(state, "b", ("n0:1",))
    runs(state, "c", ("n1:0", "n1:1"))
    assert in_the_way(ordered("d", ("n0:0", "n0:1"), purpose="measure"), state) == ["c"]


def test_what_measures_is_not_stopped_to_measure(state):
    runs(state, "a", ("n0:0",), measures=True)
    runs(state, "b", ("n0:1",), measures=True)
    runs(state, "c", ("n1:0",), measures=True)
    runs(state, "d", ("n1:1",))
    assert in_the_way(ordered("d", ("n0:0",), purpose="measure"), state) == ["d"]
    assert in_the_way(ordered("d", ("n0:0", "n0:1"), purpose="measure"), state) == []


def test_a_device_that_has_left_is_not_counted(state):
    runs(state, "a", ("n0:0",))
    runs(state, "b", ("n1:0",))
    state.leave(("n0:1", "n1:1"))
    assert in_the_way(ordered("d", ("n0:0", "n0:1"), purpose="measure"), state) == []
