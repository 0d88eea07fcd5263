"""A name that is allowed and that a training cannot have is told of."""

import dataclasses

from dovetail.control import Controller, Settings
from dovetail.control.result import open_result
from dovetail.engines import SimulatedEngine
from dovetail.planning import PLANNERS
from dovetail.store import Store
from tests.control.simulations import cluster, task, workload, world


def warnings(home, *, allow):
    """What a run of two tasks of one family, which can have nothing, warns of."""
    tasks = [task(name, steps=20, family="plain") for name in ("a", "b")]
    with Store(home, write=True) as store:
        controller = Controller(
            dataclasses.replace(workload(*tasks), allow=allow),
            cluster=cluster(2),
            store=store,
            engine=SimulatedEngine(world(), kind_of=lambda device: "sim"),
            planner=PLANNERS["list"],
            settings=Settings(),
        )
        controller.reconcile()
        controller.run()
    return open_result(home).warnings


def test_each_family_is_told_once_of_each_name(tmp_path):
    said = warnings(tmp_path, allow=("fp8", "state-8bit"))
    assert len(said) == 2
    assert said[0].startswith("a: 'fp8' is allowed, and a training like this cannot have it: its steps are taken")
    assert "'state-8bit' is allowed, and a training like this cannot have it (it is for Adam, AdamW, SGD)" in said[1]


def test_without_a_name_nothing_is_said(tmp_path):
    assert warnings(tmp_path, allow=()) == ()
