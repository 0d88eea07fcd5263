"""Orders that run as several ranks: they end as one, whatever happens to any of them."""

import dataclasses
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from dovetail.planning import TECHNIQUES
from dovetail.testing.cut_links import cut_links
from dovetail.testing.engines import MANY_STEPS, Ground, belongs, check_ends, drain, ends_of, write_program
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task
from tests.engines.forking import forking_engine
from tests.engines.worker_pids import worker_pids

pytestmark = pytest.mark.process

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    engine = forking_engine(CLUSTER, home=home)
    yield Ground(engine=engine, cluster=CLUSTER, reference=write_program(home), home=home)
    engine.close()


def task_of(ground, function, **options):
    program = Program(reference=f"tests.engines.programs:{function}")
    return Task(name=f"{function}-{next(ground.numbers)}", program=program, stop=Stop(steps=5), **options)


def together(ground, task, *, technique="replicate", purpose="train", **options):
    order = ground.order(ground.member(task, **options), purpose=purpose)
    return dataclasses.replace(order, technique=technique, devices=("n0:0", "n0:1"))


RANKED = sorted(name for name, spec in TECHNIQUES.items() if spec.ranked)


def run(ground, task, **options):
    """Carry out an order on two ranks; gives its events."""
    order = together(ground, task, **options)
    ground.engine.start(order)
    return [event for event in drain(ground.engine, order) if belongs(event, order)]


def start_and_see_progress(ground, task, **options):
    order = together(ground, task, until_step=MANY_STEPS, **options)
    ground.engine.start(order)
    events = []
    while not any(event.kind == "progress" and event.step > 0 for event in events):
        events += ground.engine.wait()
        assert not ends_of(task, events), events
    return order


@pytest.mark.parametrize("technique", RANKED)
def test_ranks_train_and_their_workers_are_used_again(ground, technique):
    before = worker_pids(ground.engine)
    task = task_of(ground, "tower")
    (end,) = ends_of(task, run(ground, task, technique=technique))
    assert (end.kind, end.step) == ("finished", 5), end
    alone = task_of(ground, "tower")
    order = ground.order(ground.member(alone))
    ground.engine.start(order)
    (expected,) = ends_of(alone, drain(ground.engine, order))
    assert end.metrics == pytest.approx(expected.metrics, rel=1e-5)
    assert worker_pids(ground.engine).keys() == {"n0:0", "n0:1"}
    assert before.items() <= worker_pids(ground.engine).items()


def test_stopping_saves_and_one_device_goes_on(ground):
    task = task_of(ground, "tower")
    order = start_and_see_progress(ground, task, technique="shard")
    ground.engine.stop(order.name, reason="moved")
    (end,) = ends_of(task, drain(ground.engine, order))
    state, damages = checkpoint.recover(Path(order.members[0].directory))
    assert (end.kind, end.reason) == ("stopped", "moved")
    assert (state.step, damages) == (end.step, [])
    until = end.step + 3
    again = ground.order(ground.member(task, until_step=until, attempt=2))
    ground.engine.start(again)
    (end,) = ends_of(task, drain(ground.engine, again))
    assert (end.kind, end.step) == ("finished", until)


def test_what_goes_wrong_on_one_rank_is_told_and_not_that_others_missed_it(ground):
    task = task_of(ground, "lopsided")
    events = run(ground, task)
    (end,) = ends_of(task, events)
    assert end.kind == "failed"
    assert "step 3" in end.reason
    assert "a word was missing" in end.reason


@pytest.mark.parametrize("technique", RANKED)
def test_a_trial_runs_on_all_ranks_and_gives_one_profile(ground, technique):
    events = run(ground, task_of(ground, "tower"), technique=technique, purpose="measure")
    (measured,) = [event for event in events if event.kind == "measured"]
    profile = measured.profile
    assert (profile.technique, profile.count, profile.kind) == (technique, 2, "cpu")
    assert profile.metrics == ("norm", "train/loss")
    assert profile.optimizer_bytes >= 2 * profile.parameter_bytes


@pytest.mark.parametrize(("function", "reason"), [("contrasting", "the mean over its rows"), ("greedy", "memory")])
def test_a_trial_that_cannot_be_split_rejects_the_option_and_not_the_task(ground, function, reason):
    events = run(ground, task_of(ground, function), purpose="measure")
    (rejected,) = [event for event in events if event.kind == "rejected"]
    assert reason in rejected.rejection.reason
    assert [event.kind for event in events] == ["rejected", "released"]


# From here on workers are killed, and each time others are started: these are last, and few.


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_order_and_the_next_attempt_goes_on(ground, rank):
    task = task_of(ground, "steady")
    order = start_and_see_progress(ground, task)
    processes = {device: psutil.Process(number) for device, number in worker_pids(ground.engine).items()}
    start = time.monotonic()
    os.kill(processes[f"n0:{rank}"].pid, signal.SIGKILL)
    events = drain(ground.engine, order)
    seconds = time.monotonic() - start
    check_ends(order, events)
    (end,) = ends_of(task, events)
    assert end.kind == "lost"
    assert end.reason.startswith(f"rank {rank} of 2 on n0:{rank} is lost: worker process")
    assert "was killed by SIGKILL" in end.reason
    assert "When last heard of it was at: " in end.reason
    assert seconds < 60  # a bound on hanging, not on speed
    assert not worker_pids(ground.engine)
    assert not any(process.is_running() for process in processes.values())
    (end,) = ends_of(task, run(ground, task, attempt=2))
    assert (end.kind, end.step) == ("finished", 5), end


def test_a_silent_rank_ends_the_order(ground, monkeypatch):
    task = task_of(ground, "steady")
    order = start_and_see_progress(ground, task)
    psutil.Process(worker_pids(ground.engine)["n0:1"]).send_signal(signal.SIGSTOP)
    monkeypatch.setattr(ground.engine, "_silence_seconds", 6.0)
    (end,) = ends_of(task, drain(ground.engine, order))
    assert end.kind == "lost"
    assert "rank 1 of 2 on n0:1 is lost" in end.reason
    assert "no heartbeat for" in end.reason


def test_a_gang_whose_link_is_cut_ends_and_the_next_attempt_goes_on(ground):
    task = task_of(ground, "tower")
    order = start_and_see_progress(ground, task)
    workers = worker_pids(ground.engine)
    assert cut_links(workers["n0:0"], workers["n0:1"])
    (end,) = ends_of(task, drain(ground.engine, order))
    assert end.kind == "lost"
    # A rank that takes more than a few seconds to end, on a busy machine, is named for that.
    ending = "its ranks on n0 are alive, and the link between two of them is lost|did not end with the others; .*"
    assert re.search(rf"({ending}). ?rank [01] of 2 on n0:[01]: another rank is gone", end.reason), end.reason
    state, _ = checkpoint.recover(Path(order.members[0].directory))
    until = (state.step if state else 0) + 3
    again = together(ground, task, until_step=until, attempt=2)
    ground.engine.start(again)
    (end,) = ends_of(task, drain(ground.engine, again))
    assert (end.kind, end.step) == ("finished", until)


def test_stopping_without_saving_ends_all_ranks(ground):
    task = task_of(ground, "steady")
    order = together(ground, task, until_step=MANY_STEPS)
    ground.engine.start(order)
    ground.engine.stop(order.name, reason="the test asked", save=False)
    (end,) = ends_of(task, drain(ground.engine, order))
    assert end.kind == "lost"
    assert "the test asked" in end.reason
    assert not worker_pids(ground.engine)


def test_closing_a_busy_engine(tmp_path, ground):
    engine = forking_engine(CLUSTER, home=tmp_path)
    engine.start(together(ground, task_of(ground, "steady"), until_step=MANY_STEPS))
    engine.close()
