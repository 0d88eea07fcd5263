"""Workers that are forked serve as those that are started, and end with those who wait for them."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dovetail.engines import LocalEngine, Spares
from dovetail.engines.fork_server import AdoptedProcess
from dovetail.engines.worker import PROCESS_NAME
from dovetail.testing.engines import PROGRAM
from dovetail.vocabulary import Cluster, Kind
from tests.engines.test_spares import train
from tests.engines.worker_pids import worker_pids

pytestmark = pytest.mark.process

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


@pytest.fixture
def reference(tmp_path):
    (tmp_path / "tiny.py").write_text(PROGRAM)
    return f"{tmp_path / 'tiny.py'}:tiny"


def test_forked_workers_are_this_processs_own_and_train(tmp_path, reference):
    before = set(psutil.Process().children())
    with contextlib.closing(Spares(CLUSTER)) as spares:
        server = spares.server
        assert not spares.workers
        with contextlib.closing(LocalEngine(CLUSTER, home=tmp_path, spares=spares)) as engine:
            workers = {name: psutil.Process(pid) for name, pid in worker_pids(engine).items()}
            assert set(workers) == {"n0:0", "n0:1"}
            assert train(engine, tmp_path, reference).kind == "finished"
            assert worker_pids(engine)["n0:0"] == workers["n0:0"].pid
            for name, worker in workers.items():  # which by now have become workers
                assert worker.ppid() == os.getpid()
                assert worker.name() == PROCESS_NAME
                assert os.getsid(worker.pid) == worker.pid
                assert worker.cpu_affinity() == [CLUSTER.device(name).index]
            assert psutil.Process(server.process.pid).num_threads() == 1
    assert set(psutil.Process().children()) <= before
    assert "fork_server" not in "".join(log.read_text() for log in (tmp_path / "logs").rglob("*.log"))


def test_one_that_is_killed_is_said_to_be_and_forked_again(tmp_path, reference):
    spares = Spares(CLUSTER)
    with contextlib.closing(spares), contextlib.closing(LocalEngine(CLUSTER, home=tmp_path, spares=spares)) as engine:
        first = worker_pids(engine)["n0:0"]
        os.kill(first, signal.SIGKILL)
        while psutil.Process(first).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        end = train(engine, tmp_path, reference)
        assert end.kind == "lost"
        assert f"worker process {first} on n0:0 was killed by SIGKILL" in end.reason
        assert train(engine, tmp_path, reference).kind == "finished"
        again = psutil.Process(worker_pids(engine)["n0:0"])
        assert again.pid != first
        assert "dovetail.engines.fork_server" in again.cmdline()


def test_where_a_package_started_a_thread_workers_are_started_as_usual(tmp_path, reference, monkeypatch):
    package = tmp_path / "site-packages" / "threaded"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "started.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()"
    )
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    with contextlib.closing(Spares(CLUSTER)) as spares:
        spares.server.preload("threaded.started")
        with contextlib.closing(LocalEngine(CLUSTER, home=tmp_path, spares=spares)) as engine:
            for pid in worker_pids(engine).values():
                process = psutil.Process(pid)
                while not process.cmdline():  # its program is being loaded
                    time.sleep(0.01)
                assert "dovetail.engines.worker" in process.cmdline()
            assert train(engine, tmp_path, reference).kind == "finished"


def test_a_server_that_is_gone_or_stale_forks_nothing(tmp_path, reference, monkeypatch):
    with contextlib.closing(Spares(CLUSTER)) as spares:
        spares.server.process.kill()
        spares.server.process.wait()
        with contextlib.closing(LocalEngine(CLUSTER, home=tmp_path, spares=spares)) as engine:
            assert not worker_pids(engine)
            assert train(engine, tmp_path, reference).kind == "finished"
    with contextlib.closing(Spares(CLUSTER)) as spares:
        monkeypatch.setenv("MKL_NUM_THREADS", "7")
        assert not spares.take(CLUSTER)
        assert spares.server is None


def test_all_end_with_the_process_that_started_them(tmp_path):
    program = (
        "import time, contextlib\n"
        "from dovetail.engines import Spares\n"
        "from dovetail.vocabulary import Cluster, Kind\n"
        "cluster = Cluster.uniform(Kind(name='cpu', processor='cpu'), devices_per_node=2)\n"
        "spares = Spares(cluster)\n"
        "workers = spares.take(cluster)\n"
        "print(spares.server.process.pid, *(worker.process.pid for worker in workers), flush=True)\n"
        "time.sleep(1e6)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as controller:
        numbers = [int(each) for each in controller.stdout.readline().split()]
        assert len(numbers) == 3
        controller.kill()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in numbers if psutil.pid_exists(pid)], timeout=300)
    assert not alive


def test_an_adopted_process_ends_as_any_other():
    sleeping = [sys.executable, "-c", "import time; time.sleep(1e6)"]
    process = AdoptedProcess(os.posix_spawn(sys.executable, sleeping, os.environ))
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.kill()  # nothing is left to kill
    assert process.poll() == -signal.SIGKILL
