"""Pipelines through the real engine: ranks that die or stall end their order in seconds, and the next one goes on."""

import dataclasses
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from dovetail.testing.engines import Ground, belongs, drain, ends_of, write_program
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task
from tests.engines.forking import forking_engine
from tests.engines.worker_pids import worker_pids

pytestmark = pytest.mark.process

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
STEPS = 30


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    engine = forking_engine(CLUSTER, home=home, silence_seconds=60.0)
    yield Ground(engine=engine, cluster=CLUSTER, reference=write_program(home), home=home)
    engine.close()


def task_of(ground, function="tower", **parameters):
    program = Program(reference=f"tests.train.pipeline.orders:{function}")
    name = f"{function}-{next(ground.numbers)}"
    return Task(name=name, program=program, stop=Stop(steps=STEPS), parameters=parameters)


def order_of(ground, task, *, knobs, **options):
    order = ground.order(ground.member(task, **{"until_step": STEPS, **options}), purpose="train")
    devices = ("n0:0", "n0:1") if knobs is not None else ("n0:0",)
    technique = "resident" if knobs is None else "pipeline"
    return dataclasses.replace(order, technique=technique, devices=devices, knobs=knobs or {}, save_every_steps=1)


def run(ground, task, *, knobs, **options):
    order = order_of(ground, task, knobs=knobs, **options)
    ground.engine.start(order)
    (end,) = ends_of(task, [event for event in drain(ground.engine, order) if belongs(event, order)])
    state, _ = checkpoint.recover(Path(order.members[0].directory))
    return end, state


def test_what_crosses_must_keep_its_shape(ground):
    knobs = {"stages": [["first", "second"], ["third"]]}
    end, state = run(ground, task_of(ground, "sifting"), knobs=knobs)
    assert end.kind == "failed"
    assert "must have the same shapes for microbatches of the same shapes" in end.reason
    assert state is None


@pytest.mark.parametrize("timetable", [pytest.param("1f1b", marks=pytest.mark.slow), "2bw"])
def test_killed_at_random_it_is_resumed_and_ends_as_if_undisturbed(ground, timetable):
    knobs = {"timetable": timetable}
    _, expected = run(ground, task_of(ground), knobs=knobs)
    task, chance = task_of(ground), random.Random(timetable)
    order = order_of(ground, task, knobs=knobs, attempt=1)
    ground.engine.start(order)
    while not any(event.kind == "saved" for event in ground.engine.wait()):
        pass
    victim = chance.randrange(2)
    os.kill(worker_pids(ground.engine)[f"n0:{victim}"], signal.SIGKILL)
    start = time.monotonic()
    (end,) = ends_of(task, drain(ground.engine, order))
    assert time.monotonic() - start < 60  # a bound on hanging, not on speed
    if end.kind != "finished":
        assert f"rank {victim} of 2 on n0:{victim} is lost" in end.reason
        assert "When last heard of it was at: " in end.reason
    # A machine so busy that ranks keep one another waiting for too long may lose it once more: as after any loss, the
    # next attempt goes on.
    for attempt in range(2, 5):
        end, state = run(ground, task, knobs=knobs, attempt=attempt)
        if end.kind != "lost":
            break
    assert (end.kind, state.step) == ("finished", STEPS), end.reason
    assert all(torch.equal(state.tensors[name], tensor) for name, tensor in expected.tensors.items())


def test_one_device_that_remains_goes_on_to_the_same_end(ground):
    knobs = {"timetable": "1f1b"}
    _, expected = run(ground, task_of(ground), knobs=None)
    task = task_of(ground)
    end, _ = run(ground, task, knobs=knobs, until_step=STEPS // 2)
    end, state = run(ground, task, knobs=None, attempt=2)
    assert (end.kind, state.step) == ("finished", STEPS)
    assert all(torch.equal(state.tensors[name], tensor) for name, tensor in expected.tensors.items())


@pytest.mark.slow
def test_a_rank_that_stalls_ends_the_order_with_its_name_and_its_action(ground):
    start = time.monotonic()
    end, _ = run(ground, task_of(ground, "stalling"), knobs={"timetable": "1f1b"})
    assert end.kind == "lost"
    reason = end.reason
    assert reason.startswith("rank 1 of 2 on n0:1 is lost: ")
    assert "it stalled: no rank has computed anything for" in reason
    assert re.search(r"it was at: forward \d of stage 1 in step \d+$", reason), reason
    assert time.monotonic() - start < 120
