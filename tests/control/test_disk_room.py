"""Checkpoints that cannot fit the disk are told of before anything is trained."""

import dataclasses

import pytest

from dovetail.control import Controller, Settings
from dovetail.control import disk_room as module
from dovetail.engines import SimulatedEngine
from dovetail.planning import PLANNERS
from dovetail.store import Store
from tests.control.simulations import cluster, task, workload, world

GiB = 1 << 30


def run(home, monkeypatch, *, free, sizes):
    """Tasks of families whose parameters and optimizer take these many bytes, on a disk with so many free."""
    monkeypatch.setattr(module, "free_bytes", lambda folder: free)
    small = world()

    def profile(family, kind, count):
        size = sizes[family]
        parts = {"parameter_bytes": size // 4, "optimizer_bytes": size - size // 4}
        return dataclasses.replace(small.profile(family, kind, count), **parts)

    tasks = [task(family, steps=20, family=family) for family in sizes]
    with Store(home, write=True) as store:
        controller = Controller(
            workload(*tasks),
            cluster=cluster(2),
            store=store,
            engine=SimulatedEngine(dataclasses.replace(small, profile=profile), kind_of=lambda device: "sim"),
            planner=PLANNERS["list"],
            settings=Settings(),
        )
        controller.reconcile()
        controller.run()
        events = [event for _, event in store.events()]
    standing = {controller.tasks[identity].name: one for identity, one in controller.progress.items()}
    return standing, events


def test_one_that_can_never_be_saved_is_refused_and_the_others_train(tmp_path, monkeypatch):
    standing, events = run(tmp_path, monkeypatch, free=10 * GiB, sizes={"large": 12 * GiB, "small": GiB})
    assert standing["small"].status == "finished"
    assert standing["large"].status == "failed"
    assert "it takes at least 12.0 GiB at" in standing["large"].reason
    assert "where 10.0 GiB are free. Free some space" in standing["large"].reason
    started = [event for event in events if event.kind == "started"]
    assert len({event.task for event in started}) == 1


def test_more_than_fits_together_is_warned_of_before_anything_starts(tmp_path, monkeypatch):
    standing, events = run(tmp_path, monkeypatch, free=10 * GiB, sizes=dict.fromkeys("abc", 4 * GiB))
    assert {one.status for one in standing.values()} == {"finished"}
    (warned,) = [number for number, event in enumerate(events) if event.kind == "warned"]
    assert "those of 3 tasks take at least 12.0 GiB at" in events[warned].message
    assert "where 10.0 GiB are free" in events[warned].message
    assert warned < min(number for number, event in enumerate(events) if event.kind == "started")


@pytest.mark.parametrize("free", [12 * GiB, 100 * GiB])
def test_what_fits_is_not_spoken_of(tmp_path, monkeypatch, free):
    standing, events = run(tmp_path, monkeypatch, free=free, sizes=dict.fromkeys("abc", 4 * GiB))
    assert {one.status for one in standing.values()} == {"finished"}
    assert not [event for event in events if event.kind == "warned"]
