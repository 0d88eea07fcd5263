import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dovetail.engines import LocalEngine, worker_engine
from dovetail.testing.engines import (
    MANY_STEPS,
    EngineConformance,
    Ground,
    belongs,
    check_ends,
    drain,
    ends_of,
    write_program,
)
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task
from tests.engines.forking import forking_engine
from tests.engines.worker_pids import worker_pids

pytestmark = pytest.mark.process

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """One engine for all tests here: a worker takes seconds to start."""
    home = tmp_path_factory.mktemp("engine")
    engine = forking_engine(CLUSTER, home=home)
    yield Ground(engine=engine, cluster=CLUSTER, reference=write_program(home), home=home)
    engine.close()


@pytest.fixture
def another(tmp_path):
    return LocalEngine(CLUSTER, home=tmp_path)


class TestLocal(EngineConformance):
    pass


def task_of(ground, function, **options):
    name = f"{function}-{next(ground.numbers)}"
    program = Program(reference=f"tests.engines.programs:{function}")
    return Task(name=name, program=program, stop=Stop(steps=5), **options)


def run(ground, task, *, device=0, **options):
    """Train a task; gives its end and all events of its order."""
    order = ground.order(ground.member(task, **options), device=device)
    ground.engine.start(order)
    events = drain(ground.engine, order)
    check_ends(order, events)
    (end,) = ends_of(task, events)
    return end, [event for event in events if belongs(event, order)]


def start_and_see_progress(ground, task, *, device=0):
    order = ground.order(ground.member(task, until_step=MANY_STEPS), device=device)
    ground.engine.start(order)
    events = []
    while not any(event.kind == "progress" and event.step > 0 for event in events):
        events += ground.engine.wait()
        assert not ends_of(task, events), events
    return order, events


def test_a_worker_is_used_again(ground):
    processes = []
    for _ in range(2):
        end, _ = run(ground, task_of(ground, "telling"))
        processes.append(end.metrics["process"])
    assert processes[0] == processes[1] == worker_pids(ground.engine)["n0:0"]


def test_what_an_order_used_and_held_is_on_record(ground):
    _, events = run(ground, ground.task())
    (released,) = [event for event in events if event.kind == "released"]
    assert released.busy_seconds > 0
    assert released.held_bytes > 50 << 20


def test_a_program_leaves_nothing_behind_for_the_next(ground):
    expected, _ = run(ground, ground.task(seed=3))
    run(ground, task_of(ground, "unruly"))
    found, _ = run(ground, ground.task(seed=3))
    assert found.metrics == expected.metrics
    end, _ = run(ground, task_of(ground, "telling"))
    assert end.metrics["threads"] == 1


def test_what_a_program_did_to_its_module_is_undone_for_the_next(ground):
    ends = [run(ground, task_of(ground, "leaking"))[0] for _ in range(2)]
    assert [dict(end.metrics) for end in ends] == [{"tasks": 1, "rate": 0.02, "now": 1}] * 2


def test_a_stopped_task_is_saved_where_it_stopped(ground):
    task = task_of(ground, "steady")
    order, _ = start_and_see_progress(ground, task)
    ground.engine.stop(order.name, reason="moved")
    (end,) = ends_of(task, drain(ground.engine, order))
    state, damages = checkpoint.recover(Path(order.members[0].directory))
    assert end.kind == "stopped"
    assert end.step > 0
    assert (state.step, damages) == (end.step, [])


def test_damage_is_told_and_the_checkpoint_before_is_used(ground):
    task = task_of(ground, "steady")
    run(ground, task, until_step=3)
    _, events = run(ground, task, until_step=6, attempt=2)
    (saved,) = [event for event in events if event.kind == "saved"]
    piece = Path(saved.path, "piece-00000.safetensors")
    piece.write_bytes(piece.read_bytes()[:-1])
    end, events = run(ground, task, until_step=9, attempt=3)
    assert (end.kind, end.step) == ("finished", 9)
    (fell_back,) = [event for event in events if event.kind == "fell_back"]
    assert "truncated" in fell_back.reason


def test_a_killed_worker_is_lost(ground):
    task = task_of(ground, "steady")
    order, _ = start_and_see_progress(ground, task, device=1)
    os.kill(worker_pids(ground.engine)["n0:1"], signal.SIGKILL)
    events = drain(ground.engine, order)
    check_ends(order, events)
    (end,) = ends_of(task, events)
    assert end.kind == "lost"
    assert "killed by SIGKILL" in end.reason
    assert "n0:1" not in worker_pids(ground.engine)


def test_a_silent_worker_is_lost(ground, monkeypatch):
    task = task_of(ground, "steady")
    order, _ = start_and_see_progress(ground, task, device=1)
    process = psutil.Process(worker_pids(ground.engine)["n0:1"])
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(ground.engine, "_silence_seconds", 6.0)
    events = drain(ground.engine, order)
    check_ends(order, events)
    (end,) = ends_of(task, events)
    assert end.kind == "lost"
    assert "no heartbeat for" in end.reason
    assert "the limit is 6 s" in end.reason
    assert not process.is_running()


def test_a_worker_that_sends_what_is_no_message_is_lost_alone(ground):
    other, neighbour = task_of(ground, "steady"), task_of(ground, "babbling")
    order, _ = start_and_see_progress(ground, other, device=0)
    end, _ = run(ground, neighbour, device=1)
    assert end.kind == "lost"
    assert "was killed: what it sent cannot be read: Expecting value" in end.reason
    ground.engine.stop(order.name, reason="seen")
    (end,) = ends_of(other, drain(ground.engine, order))
    assert end.kind == "stopped"
    end, _ = run(ground, task_of(ground, "telling"), device=1)
    assert end.kind == "finished"


def test_a_metric_whose_name_cannot_be_stored_is_its_tasks_failure(ground):
    end, _ = run(ground, task_of(ground, "misnaming"))
    assert end.kind == "failed"
    assert "a metric's name must be text, and all of it UTF-8" in end.reason


def test_a_wait_is_ended_by_who_asks_for_something(another, monkeypatch):
    monkeypatch.setattr(worker_engine, "WAIT_SECONDS", 3600.0)
    for _ in range(3):
        another.interrupt()
        assert another.wait() == []
    another.close()
    another.interrupt()  # by whoever does not know yet


def test_a_worker_that_exits_is_lost_with_its_last_words(ground):
    end, _ = run(ground, task_of(ground, "exiting"), device=1)
    assert end.kind == "lost"
    assert re.search(r"exited with code 3 at programs.py:\d+ in exiting", end.reason)
    assert "these are my last words" in end.log


def test_running_out_of_memory_fails_with_its_cause(ground):
    end, _ = run(ground, task_of(ground, "greedy"))
    assert (end.kind, end.cause) == ("failed", "memory")
    assert "ran out of memory: tried to allocate 900 GiB" in end.reason
    assert "smaller batch with accumulate" in end.reason


def test_a_loss_that_is_no_number_names_its_first_step(ground):
    end, events = run(ground, task_of(ground, "diverging", parameters={"at": 27}), until_step=40)
    assert end.kind == "failed"
    points = [point for event in events if event.kind == "progress" for point in event.points]
    assert [step for name, step, _ in points if name == "train/loss"] == [10, 20]  # how it came there
    assert "it was nan at step 27, the first such step" in end.reason
    assert "Nothing was saved yet" in end.reason


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raising", "its program must build a Training; it raised LookupError: the data is not here"),
        ("not_a_training", "must return a dovetail.Training, got int"),
        ("misshapen", "the model must accept every batch; step 1"),
        ("stedy", "must define a function 'stedy'; it does not; did you mean 'steady'"),
    ],
)
def test_a_program_that_is_wrong_fails_with_a_reason(ground, function, reason):
    end, _ = run(ground, task_of(ground, function))
    assert (end.kind, end.cause) == ("failed", "program")
    assert reason in end.reason
    assert "Traceback" in end.log


def test_a_task_named_in_an_order_that_others_share_is_told_once(ground):
    good, bad = task_of(ground, "steady"), task_of(ground, "exiting")
    order = ground.order(ground.member(good), ground.member(bad), purpose="fingerprint", device=1)
    ground.engine.start(order)
    events = [event.kind for event in drain(ground.engine, order) if event.task == good.identity]
    assert events == ["fingerprinted"]


def test_a_workload_that_runs_itself_in_a_worker_is_refused(tmp_path, monkeypatch):
    from dovetail.vocabulary import DovetailError

    monkeypatch.setenv("DOVETAIL_WORKER", "1")
    with pytest.raises(DovetailError, match="if __name__ == '__main__'"):
        LocalEngine(CLUSTER, home=tmp_path)


ORPHAN = """
import sys
from pathlib import Path
from dovetail.testing.engines import MANY_STEPS, Ground
from dovetail.engines import LocalEngine, worker_engine
from tests.engines.test_local import CLUSTER, start_and_see_progress, task_of
from tests.engines.worker_pids import worker_pids
home = Path(sys.argv[1])
ground = Ground(engine=LocalEngine(CLUSTER, home=home), cluster=CLUSTER, reference="a:b", home=home)
start_and_see_progress(ground, task_of(ground, "steady"))
print(*worker_pids(ground.engine).values(), flush=True)
while True:
    ground.engine.wait()
"""


def engine_in_a_process(home, *before):
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [*before, sys.executable, "-c", ORPHAN, str(home)], stdout=subprocess.PIPE, text=True, cwd=root
    )


def test_workers_end_with_their_engine(tmp_path):
    with engine_in_a_process(tmp_path) as engine:
        worker = psutil.Process(int(engine.stdout.readline()))
        engine.send_signal(signal.SIGKILL)
    worker.wait(timeout=300)
    assert not worker.is_running()


@pytest.mark.parametrize("how", ["closed", pytest.param("killed", marks=pytest.mark.slow)])
def test_what_programs_start_ends_with_their_worker(another, tmp_path, how):
    ground = Ground(engine=another, cluster=CLUSTER, reference="", home=tmp_path)
    end, _ = run(ground, task_of(ground, "parental"))
    child = psutil.Process(int(end.metrics["child"]))
    assert child.is_running()
    if how == "killed":
        (worker,) = worker_pids(another).values()
        os.kill(worker, signal.SIGKILL)
    another.close()
    child.wait(timeout=300)


def can_make_a_container():
    try:
        return subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_make_a_container(), reason="a process namespace needs privileges that are not here")
def test_an_engine_may_be_process_1(tmp_path):
    with engine_in_a_process(tmp_path, "unshare", "--pid", "--fork", "--kill-child") as outside:
        assert int(outside.stdout.readline()) > 1
        outside.kill()


def test_a_worker_accounts_for_its_order(ground):
    _, events = run(ground, task_of(ground, "telling"))
    (spent,) = [event.seconds for event in events if event.kind == "released"]
    assert {"building", "step", "saving", "evaluating"} <= spent.keys()
    assert all(seconds >= 0 for seconds in spent.values())
