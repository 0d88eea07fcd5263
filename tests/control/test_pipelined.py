"""A pipeline through the real loop: a rank is killed, and the task goes on from its checkpoint on what remains."""

import contextlib
import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch

from dovetail.control import Controller, Settings
from dovetail.describe import load_workload
from dovetail.engines import LocalEngine
from dovetail.plan import PLANNERS
from dovetail.store import Store
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.train.build import build
from dovetail.vocabulary import Cluster, Kind, Option

SWEEP = """
import time
import torch
from torch import nn
import dovetail as dt

def tower(seed=0):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(6)))

    def loss(model, batch):
        time.sleep(0.003)
        return model(batch).square().mean()

    return dt.Training(model=model, batches=[torch.randn(8, 8) for _ in range(12)], loss=loss, accumulate=4,
                       optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))

workload = dt.grid(tower, steps=120, name="pipelined")
"""
STEPS = 120


def as_pipeline(problem):
    """A pipeline over both devices, while there are two."""
    if not problem.families or len(problem.cluster.devices) == 1:
        return PLANNERS["list"](problem)
    count = len(problem.cluster.devices)
    option = Option(
        families=tuple(family.name for family in problem.families),
        technique="pipeline",
        kind="cpu",
        count=count,
        step_seconds=(0.05,),
        cores=count,
        knobs={"timetable": "1f1b"},
    )
    return PLANNERS["list"](dataclasses.replace(problem, options=(option,)))


def carry_on(folder: Path, *, devices: int, observe):
    """A controller's life on so many devices, from the store that is there."""
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=devices)
    with Store(folder / "store", write=True) as store:
        engine = LocalEngine(cluster, home=folder / "store")
        controller = Controller(
            load_workload(str(folder / "sweep.py")),
            cluster=cluster,
            store=store,
            engine=engine,
            planner=as_pipeline,
            settings=Settings(save_every_steps=5, exact=True),
            observe=lambda found: observe(found, engine),
        )
        try:
            controller.reconcile()
            controller.measure()
            controller.run()
        finally:
            engine.close()
        return controller, [event for _, event in store.events()]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pipeline_outlives_its_ranks_and_some_of_its_devices(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    struck = []

    def strike(controller, engine):
        (one,) = controller.progress.values()
        if one.status == "running" and one.saved_step >= 10 and not struck:
            struck.append(one.saved_step)
            os.kill(engine.processes()["n0:1"], signal.SIGKILL)
        if one.status == "running" and struck and one.saved_step > struck[0]:
            controller.post("stop", reason="a device is taken away")

    first, events = carry_on(tmp_path, devices=2, observe=strike)
    assert first.phase == "stopped"
    (lost,) = [event for event in events if event.kind == "lost"]
    assert "rank 1 of 2 on n0:1 is lost" in lost.data["reason"]
    second, events = carry_on(tmp_path, devices=1, observe=lambda controller, engine: None)
    ((identity, one),) = second.progress.items()
    assert one.status == "finished"
    assert [len(span.devices) for span in one.spans] == [2, 2, 1]
    assert all(span.from_step >= 10 for span in one.spans[1:])
    state, damages = checkpoint.recover(tmp_path / "store" / "checkpoints" / identity)
    assert not damages
    assert_like_alone(state, second)


def assert_like_alone(state, controller):
    """One device that was left alone has the same bits."""
    (task,) = controller.workload.tasks
    torch.set_num_threads(1)
    member = SessionMember(training=build(task), seed=task.seed)
    with contextlib.closing(RESIDENT.open([member], device=torch.device("cpu"), threads=1)) as session:
        for _ in range(STEPS):
            session.advance()
        expected = session.state()
    for name, tensor in expected.tensors.items():
        assert torch.equal(state.tensors[name], tensor), name
