"""What an edit of a workload makes of each task, in records, in events, and in words."""

import dataclasses

import pytest

from dovetail.control.reconcile import events_of, reconcile
from dovetail.metrics.progress import fold
from dovetail.store import Store
from tests.control.simulations import task, workload

KEPT, EDITED, LONGER, GONE = task("kept"), task("edited", source="1"), task("longer", steps=100), task("gone")


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def run(store, *tasks):
    """Reconcile and put it on record, as the controller does; gives what was found."""
    progress = fold(event for _, event in store.events())
    found = reconcile(workload(*tasks), store, gone={name for name, one in progress.items() if one.vanished})
    store.add(tasks=[("simulated", each) for each in tasks], events=events_of(found, at_seconds=0.0))
    return found


def names(tasks):
    return [each.name for each in tasks]


def test_the_first_run_finds_all_new_and_says_nothing(store):
    found = run(store, KEPT, EDITED)
    assert names(found.new) == ["kept", "edited"]
    assert found.lines() == []


def test_the_same_again_says_nothing(store):
    run(store, KEPT, EDITED)
    found = run(store, KEPT, EDITED)
    assert names(found.same) == ["kept", "edited"]
    assert found.new == found.changed == found.vanished == found.extended == found.returned == ()
    assert found.lines() == []


def test_every_edit_at_once_is_told_apart_and_told(store):
    run(store, KEPT, EDITED, LONGER, GONE)
    after = task("edited", source="2")
    found = run(store, KEPT, after, task("longer", steps=150), task("fresh"))
    assert names(found.same) == ["kept"]
    assert names(found.new) == ["fresh"]
    assert found.changed == ((EDITED, after),)
    assert [(before.stop.steps, now.stop.steps) for before, now in found.extended] == [(100, 150)]
    assert names(found.vanished) == ["gone"]
    assert found.lines() == [
        "1 tasks go on as they are",
        "new: fresh",
        "goes on, 150 steps instead of 100 steps: longer",
        "starts anew, its program or parameters were edited: edited",
        "no longer in the file, kept in the store: gone",
    ]


def test_what_comes_back_goes_on(store):
    run(store, KEPT, GONE)
    run(store, KEPT)
    found = run(store, KEPT, GONE)
    assert names(found.returned) == ["gone"]
    assert found.lines() == ["1 tasks go on as they are", "is back in the file and goes on: gone"]
    assert not fold(event for _, event in store.events())[GONE.identity].vanished


def test_an_edit_that_is_undone_brings_the_task_back(store):
    run(store, EDITED)
    run(store, task("edited", source="2"))
    found = run(store, EDITED)
    assert found.returned == (EDITED,)
    assert [before.program.source for before in found.vanished] == ["2"]


def test_a_changed_task_is_reported_once_and_kept(store):
    run(store, EDITED)
    run(store, task("edited", source="2"))
    found = run(store, task("edited", source="2"))
    assert found.lines() == []
    assert EDITED in [each for _, each in store.tasks()]


def test_other_parameters_are_another_task_of_the_same_name(store):
    run(store, task("a", width=1))
    found = run(store, task("a", width=2))
    assert [(dict(old.parameters), dict(new.parameters)) for old, new in found.changed] == [
        ({"width": 1}, {"width": 2})
    ]


def test_a_gone_task_that_comes_back_with_more_steps_goes_on(store):
    run(store, KEPT, LONGER)
    run(store, KEPT)
    found = run(store, KEPT, task("longer", steps=150))
    assert len(found.extended) == 1
    assert found.returned == ()
    assert not fold(event for _, event in store.events())[LONGER.identity].vanished


def test_another_workload_of_the_same_store_is_left_alone(store):
    run(store, KEPT)
    store.add(tasks=[("another", GONE)])
    assert run(store, KEPT).vanished == ()


def test_a_task_of_two_workloads_goes_on_in_the_second_and_stays_in_the_first(store):
    run(store, KEPT, LONGER)
    longest = task("longer", steps=300)
    found = reconcile(dataclasses.replace(workload(longest), name="other"), store, gone=set())
    assert [(before.stop.steps, now.stop.steps) for before, now in found.extended] == [(100, 300)]
    assert found.new == found.changed == found.vanished == ()
    store.add(tasks=[("other", longest)], events=events_of(found, at_seconds=0.0))
    assert names(each for _, each in store.tasks(workload="simulated")) == ["kept", "longer"]
    assert names(each for _, each in store.tasks(workload="other")) == ["longer"]
    assert [each.stop.steps for _, each in store.tasks() if each.name == "longer"] == [300]
    # Gone from one, it is still in the other.
    assert names(run(store, KEPT).vanished) == []
