"""A replay of the nodes of a run: of one that wasted no time it is the run itself."""

import pytest

from dovetail.control.simulation.node_replay import replay_nodes
from dovetail.engines import Outage
from dovetail.store import Store
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.node_events import DevicesJoined, NodeLeaving
from tests.control.simulations import cluster, task
from tests.control.test_nodes import joins, node, run


def began(at=0.0):
    found = cluster(1)
    return DevicesJoined(at_seconds=at, devices=("n0:0",), cluster=found, anew=True)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_run_on_a_virtual_clock_took_what_was_possible(leaves):
    happenings = [began(), joins(node("n1"), at=150.0)]
    outages = []
    if leaves:
        happenings.append(NodeLeaving(at_seconds=230.0, node="n1", leaves_seconds=250.0))
        outages.append(Outage(devices=("n1:0",), at_seconds=250.0))
    with Store(None, write=True) as store:
        _, engine = run(store, [task(name) for name in "abcdef"], happenings=happenings, outages=outages)
        found = replay_nodes(store)
    assert (found.tasks, found.nodes) == (6, 2)
    assert found.real_seconds == pytest.approx(engine.now(), abs=5.0)
    assert found.over == pytest.approx(1.0, abs=0.02)


def test_a_store_without_nodes_is_refused():
    with Store(None, write=True) as store, pytest.raises(DovetailError, match="must have a run on a Ray cluster"):
        replay_nodes(store)
