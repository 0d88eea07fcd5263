"""A replay of the nodes of a run: of one that wasted no time it is the run itself."""

import pytest

from dovetail.control.simulation.node_replay import replay_nodes
from dovetail.engines import Outage
from dovetail.store import Store
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.events import DevicesReleased
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
    assert found.paced_seconds == found.possible_seconds


def test_what_was_lost_with_a_node_that_vanished_was_not_inevitable():
    happenings = [began(), joins(node("n1"), at=0.0)]
    outages = [Outage(devices=("n1:0",), at_seconds=128.0)]
    with Store(None, write=True) as store:
        run(store, [task(name) for name in "abcd"], happenings=happenings, outages=outages)
        (lost,) = [event for _, event in store.events() if event.kind == "lost"]
        found = replay_nodes(store)
    assert lost.at_seconds == 128.0
    # Half a minute passes between two saves, in which nothing is lost where saving takes no time.
    assert found.real_seconds - found.possible_seconds > 5.0


def test_steps_that_were_slower_than_measured_are_told_from_time_that_was_lost():
    with Store(None, write=True) as store:
        run(store, [task(name) for name in "abc"], happenings=[began()])
        started = {event.task: event for _, event in store.events() if event.kind == "started"}
        store.add(
            events=[
                DevicesReleased(
                    at_seconds=1e6,
                    placement=one.placement,
                    purpose="train",
                    seconds={"step": 1.5 * one.predicted_seconds},
                )
                for one in started.values()
            ]
        )
        found = replay_nodes(store)
    assert found.paced_seconds == pytest.approx(1.5 * found.possible_seconds)
    assert found.over_paced == pytest.approx(found.over / 1.5)


def test_a_store_without_nodes_is_refused():
    with Store(None, write=True) as store, pytest.raises(DovetailError, match="must have a run on a Ray cluster"):
        replay_nodes(store)
