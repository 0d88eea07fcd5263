"""A run keeps the deadlines of its tasks, is refused where it cannot, and is as little late as can be where it comes to
be late."""

import dataclasses

import pytest

from dovetail.control import Controller
from dovetail.engines import Order
from dovetail.store import Store
from dovetail.vocabulary import NoFeasiblePlan, Workload
from dovetail.vocabulary.events import TaskSubmitted
from tests.control.simulations import (
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    statuses,
    task,
    workload,
    world,
)


def due(**deadlines: float) -> Workload:
    """A long task and two short ones, on one device: the long one first is what the planner likes."""
    tasks = (task("long", steps=100), task("short", steps=20), task("other", steps=20))
    return dataclasses.replace(workload(*tasks), deadlines=deadlines)


def ran(what: Workload, *, slowness: float = 1.0) -> Controller:
    store = Store(None, write=True)

    def slower(order: Order) -> float:
        return slowness

    engine = RiggedEngine(world(slowness=slower))
    return carry_out(controller(what, store, on=cluster(1), engine=engine))


def ends(found: Controller) -> dict[str, float]:
    """When each task ended, from the beginning of the run."""
    finished = events_of(found.store, "finished")
    return {found.tasks[event.task].name: event.at_seconds for event in finished}


@pytest.mark.parametrize("first", ["long", "short", "other"])
def test_a_run_keeps_the_deadlines_of_its_tasks(first: str) -> None:
    steps = {"long": 100, "short": 20, "other": 20}[first]
    found = ran(due(**{first: steps + 5.0}))
    assert ends(found)[first] <= steps + 5.0
    assert set(statuses(found).values()) == {"finished"}


@pytest.mark.parametrize("deadlines", [{"short": 10.0}, {"long": 105.0, "short": 25.0}], ids=["alone", "together"])
def test_a_run_that_cannot_keep_them_is_refused_by_name_before_anything_starts(deadlines: dict[str, float]) -> None:
    store = Store(None, write=True)
    found = controller(due(**deadlines), store, on=cluster(1))
    with pytest.raises(NoFeasiblePlan, match=r"'(short|long)'"):
        carry_out(found)
    assert not events_of(store, "started")


def test_one_that_comes_to_be_late_goes_on_and_says_so() -> None:
    found = ran(due(other=30.0, short=50.0), slowness=2.0)
    # The first takes twice as long as was measured; by then the second cannot be in time any more.
    assert ends(found)["other"] < ends(found)["short"] < ends(found)["long"]
    assert set(statuses(found).values()) == {"finished"}
    (warning, *_) = events_of(found.store, "warned")
    assert "'short'" in warning.message


def test_what_a_daemon_was_told_counts_as_well() -> None:
    store = Store(None, write=True)
    found = controller(due(), store, on=cluster(1))
    found.reconcile()
    name = {each.name: identity for identity, each in found.tasks.items()}
    ledger = found._state.ledger
    ledger.record([ledger.event(TaskSubmitted, name["other"], priority=1.0, deadline_seconds=26.0)])
    found.measure()
    found.run()
    assert ends(found)["other"] <= 26.0
