"""A pipeline through the real loop: its devices go one after another, and the task goes on from its checkpoint with the
stages that suit what remains."""

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from dovetail.control import Controller, Settings
from dovetail.describe import load_workload
from dovetail.engines import LocalEngine
from dovetail.engines.detection import available_cores
from dovetail.planning import PLANNERS
from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.techniques import pipeline
from dovetail.planning.techniques.base import with_layers
from dovetail.store import Store
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.train.build import build
from dovetail.vocabulary import Cluster, Kind, read_event
from dovetail.web.timetable_charts import read_timetables
from tests.engines.forking import forking_engine
from tests.engines.worker_pids import worker_pids

STEPS = 200
SWEEP = f"""
import time
import torch
from torch import nn
import dovetail as dt

def tower(seed=0):
    sizes = (8, 8, 8, 64, 8, 64, 8)  # unlike layers: what suits three devices is no part of what suits two
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Dropout(0.1)) for a, b in zip(sizes, sizes[1:]))
    )

    def loss(model, batch):
        time.sleep(0.005)
        return model(batch).square().mean()

    return dt.Training(model=model, batches=[torch.randn(8, 8) for _ in range(12)], loss=loss, accumulate=4,
                       optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))

workload = dt.grid(tower, steps={STEPS}, name="pipelined")
"""


class Losing(LocalEngine):
    """A machine whose devices may go: the rank that had one dies with it."""

    gone = ()

    def lose(self, device):
        self.gone = (device,)
        os.kill(worker_pids(self)[device], signal.SIGKILL)

    def wait(self):
        gone, self.gone = self.gone, ()
        data = {"devices": gone, "reason": "taken away"}
        return [*([read_event("departed", at_seconds=self.now(), data=data)] if gone else []), *super().wait()]


def as_pipeline(store):
    """A planner that has every task over all devices there are, in the stages that its profile asks for."""

    def plan(problem):
        devices = [device.name for device in problem.cluster.devices]
        if not problem.families or len(devices) == 1:
            return PLANNERS["list"](problem)
        (profile,) = with_layers(each for each in store.profiles() if each.count == 1 and each.edges)
        kind, fabric = problem.cluster.kinds[0], Fabric.of(problem.cluster, devices=devices)
        found = pipeline.predict(profile, kind=kind, fabric=fabric, depth=len(devices), width=1)
        names = tuple(family.name for family in problem.families)
        return PLANNERS["list"](
            dataclasses.replace(problem, options=(dataclasses.replace(found.option, families=names),))
        )

    return plan


def on_cores(devices: int) -> Cluster:
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=devices)
    cores = available_cores()  # of which there may be fewer: ranks then take turns
    placed = [dataclasses.replace(each, index=cores[n % len(cores)]) for n, each in enumerate(cluster.devices)]
    return dataclasses.replace(cluster, devices=tuple(placed))


def carry_on(folder: Path, *, devices: int, observe):
    """A controller's life on so many devices, from the store that is there."""
    cluster = on_cores(devices)
    with Store(folder / "store", write=True) as store:
        engine = Losing(cluster, home=folder / "store")
        controller = Controller(
            load_workload(str(folder / "sweep.py")),
            cluster=cluster,
            store=store,
            engine=engine,
            planner=as_pipeline(store),
            settings=Settings(save_every_steps=5, exact=True),
            observe=lambda found: observe(found, engine),
        )
        try:
            controller.reconcile()
            controller.measure()
            controller.run()
        finally:
            engine.close()
        return controller, [event for _, event in store.events()], read_timetables(store)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pipeline_outlives_its_devices(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    struck = []

    def strike(controller, engine):
        (one,) = controller.progress.values()
        if one.status == "running" and one.saved_step >= 10 and not struck:
            struck.append(one.saved_step)
            engine.lose("n0:1")
        if one.status == "running" and struck and one.saved_step > struck[0]:
            controller.post("stop", reason="another device is taken away")

    first, events, (drawn,) = carry_on(tmp_path, devices=3, observe=strike)
    assert first.phase == "stopped"
    (lost,) = [event for event in events if event.kind == "lost"]
    assert "rank 1 of 3 on n0:1 is lost" in lost.reason
    starts = [event for event in events if event.kind == "started"]
    assert [start.devices for start in starts] == [("n0:0", "n0:1", "n0:2"), ("n0:0", "n0:2")]
    assert starts[1].step >= 10
    assert_repartitioned(*(start.option.knobs["stages"] for start in starts))
    assert_drawn(drawn, ranks=2)
    second, _, _ = carry_on(tmp_path, devices=1, observe=lambda controller, engine: None)
    ((identity, one),) = second.progress.items()
    assert one.status == "finished"
    assert [len(span.devices) for span in one.spans] == [3, 2, 1]
    state, damages = checkpoint.recover(tmp_path / "store" / "checkpoints" / identity)
    assert not damages
    assert_like_alone(state, second)


def assert_repartitioned(before, after):
    """Other stages of the same layers."""
    assert (len(before), len(after)) == (3, 2)
    layers = [[name for stage in stages for name in stage] for stages in (before, after)]
    assert sorted(layers[0]) == sorted(layers[1])


def assert_drawn(drawn, *, ranks):
    """What the last start was planned as and what its ranks did: the same actions."""
    found = [
        [[str(timed.action) for timed in rank if timed.action.operation != "update"] for rank in each.ranks]
        for each in (drawn.planned, drawn.measured)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == ranks


def assert_like_alone(state, controller, *, steps=STEPS):
    """One device that was left alone has the same bits."""
    (task,) = controller.workload.tasks
    torch.set_num_threads(1)
    member = SessionMember(training=build(task), seed=task.seed)
    with contextlib.closing(RESIDENT.open([member], device=torch.device("cpu"), threads=1)) as session:
        for _ in range(steps):
            session.advance()
        expected = session.state()
    for name, tensor in expected.tensors.items():
        assert torch.equal(state.tensors[name], tensor), name


INTERLEAVED = """
import time
import torch
from torch import nn
import dovetail as dt

class Slow(nn.Linear):
    def forward(self, rows):
        time.sleep(0.004)  # takes as long however busy the machine is
        return super().forward(rows)

def tower(seed=0):
    model = nn.Sequential(*(nn.Sequential(Slow(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(8)))
    return dt.Training(model=model, batches=[torch.randn(4, 8) for _ in range(16)], accumulate=8,
                       loss=lambda model, batch: model(batch).square().mean(),
                       optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))

workload = dt.grid(tower, steps=40, name="pipelined")
"""


@pytest.mark.process
@pytest.mark.timeout(240)
def test_planners_choose_the_timetable_and_ranks_follow_it_to_the_bit(tmp_path, monkeypatch):
    (tmp_path / "sweep.py").write_text(INTERLEAVED)
    cluster = on_cores(2)
    with Store(tmp_path / "store", write=True) as store:
        engine = forking_engine(cluster, home=tmp_path / "store")
        controller = Controller(
            load_workload(str(tmp_path / "sweep.py")),
            cluster=cluster,
            store=store,
            engine=engine,
            planner=PLANNERS["list"],
            settings=Settings(exact=True),
        )
        try:
            controller.reconcile()
            controller.measure(everything=True)
            controller.run()
        finally:
            engine.close()
        ((identity, one),) = controller.progress.items()
        (start,) = [event for _, event in store.events() if event.kind == "started"]
        rejected = [event for _, event in store.events() if event.kind == "rejected"]
        drawings = read_timetables(store)
    assert one.status == "finished"
    assert start.option.technique == "pipeline", rejected
    (drawn,) = drawings
    # 1F1B would idle for a ninth of a step; chunks or halved backward passes make that half as much or less, and which
    # of the two is better lies within what a busy machine measures.
    assert start.option.knobs["timetable"] in ("interleaved", "zero_bubble")
    assert drawn.timetable == start.option.knobs["timetable"]
    assert_drawn(drawn, ranks=2)
    state, damages = checkpoint.recover(tmp_path / "store" / "checkpoints" / identity)
    assert not damages
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # bits do not hang on how long a layer takes
    assert_like_alone(state, controller, steps=40)
