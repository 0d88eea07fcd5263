"""Workers that start before the workload is read: they serve as any other, and nothing else depends on them."""

import contextlib
import dataclasses
import importlib
import signal
import sys

import psutil
import pytest

from dovetail.describe import grid
from dovetail.engines import LocalEngine, Spares
from dovetail.store import ControllerLock
from dovetail.testing.engines import PROGRAM, Ground, check_ends, drain, ends_of, write_program
from dovetail.verbs.run_workload import run
from dovetail.vocabulary import Cluster, Kind, StoreBusy
from tests.engines.mps_control import put_control
from tests.engines.worker_pids import worker_pids

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def spawning(monkeypatch):
    """As on machines with accelerators: each imports for itself. Those that are forked have tests of their own."""
    monkeypatch.setattr("dovetail.engines.spares.can_fork", lambda: False)


CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


def numbers(spares):
    return {worker.devices[0]: worker.process.pid for worker in spares.workers}


def train(engine, home, reference):
    ground = Ground(engine=engine, cluster=CLUSTER, reference=reference, home=home)
    task = ground.task()
    order = ground.order(ground.member(task))
    engine.start(order)
    events = drain(engine, order)
    check_ends(order, events)
    (end,) = ends_of(task, events)
    return end


# None of these has its spares from a fixture: pytest says in the environment where it is, so that changes.


def test_one_serves_with_what_can_be_imported_by_then_and_writes_its_engines_log(tmp_path, monkeypatch):
    spares, home, later = Spares(CLUSTER), tmp_path / "store", tmp_path / "later"
    first = numbers(spares)
    later.mkdir()
    # Beside what a sweep does: a folder of its own to import from, and what scikit-learn sets.
    (later / "found_later.py").write_text(f"print('imported here')\n{PROGRAM}")
    monkeypatch.setattr(sys, "path", [str(later), *sys.path])
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    with contextlib.closing(spares), contextlib.closing(LocalEngine(CLUSTER, home=home, spares=spares)) as engine:
        assert worker_pids(engine) == first
        assert not spares.workers
        assert train(engine, home, "found_later:tiny").kind == "finished"
        assert worker_pids(engine) == first
    logs = [path for path in (home / "logs").rglob("*") if path.is_file()]
    assert "imported here" in "".join(log.read_text() for log in logs)
    assert {log.stat().st_mode & 0o777 for log in logs} == {0o600}
    assert not any(map(psutil.pid_exists, first.values()))


def test_they_import_what_reading_imports_from_installed_packages_and_nothing_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("import os, pathlib\npathlib.Path(os.environ['RUNS']).write_text('run')")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inside.py").write_text("import beside")
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))  # where a spare would leave it, too
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    told = []
    with contextlib.closing(Spares(CLUSTER)) as spares:
        monkeypatch.setattr(type(spares.workers[0]), "preload", lambda worker, name: told.append(name))
        with spares.importing_along():
            importlib.import_module("package.inside")
            for name in ("scipy.cluster.vq", "scipy.cluster"):
                sys.modules.pop(name, None)
            importlib.import_module("scipy.cluster.vq")
        assert told.count("scipy.cluster.vq") == len(spares.workers)
        assert not {name.partition(".")[0] for name in told} & {"package", "beside"}
        assert (tmp_path / "runs").read_text() == "run"


def test_none_is_taken_whose_libraries_may_have_been_set_up_otherwise(tmp_path, monkeypatch):
    with contextlib.closing(Spares(CLUSTER)) as spares:
        first = numbers(spares)
        monkeypatch.setenv("MKL_NUM_THREADS", "7")
        with contextlib.closing(LocalEngine(CLUSTER, home=tmp_path, spares=spares)) as engine:
            assert not worker_pids(engine)
            assert not any(map(psutil.pid_exists, first.values()))


def test_what_a_package_sets_as_it_is_imported_is_set_in_all_and_not_what_it_is_called_to_set(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "settled"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "at_import.py").write_text("import os\nos.environ.setdefault('SETTLED_AT_IMPORT', 'yes')")
    (package / "when_called.py").write_text("import os\ndef load(): os.environ['SETTLED_WHEN_CALLED'] = 'yes'")
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    for name in ("SETTLED_AT_IMPORT", "SETTLED_WHEN_CALLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with contextlib.closing(Spares(CLUSTER)) as spares:
        with spares.importing_along():
            importlib.import_module("settled.at_import")
        (one, other) = spares.take(CLUSTER)
        spares.workers += [one, other]
        with spares.importing_along():
            importlib.import_module("settled.when_called").load()
        assert not spares.take(CLUSTER)


def test_none_is_taken_from_another_folder_or_for_other_devices(tmp_path, monkeypatch):
    with contextlib.closing(Spares(CLUSTER)) as spares:
        assert not spares.take(CLUSTER.without(["n0:1"]))
    with contextlib.closing(Spares(CLUSTER)) as spares:
        monkeypatch.chdir(tmp_path)
        assert not spares.take(CLUSTER)


def test_none_is_taken_where_a_module_of_the_users_has_the_name_of_an_installed_one(tmp_path, monkeypatch):
    (tmp_path / "tabulate_here.py").write_text("")
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for shadow, taken in (("tabulate_here", 2), ("scipy", 0)):
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
        with contextlib.closing(Spares(CLUSTER)) as spares:
            monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
            hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == shadow}
            importlib.import_module(shadow)
            found = spares.take(CLUSTER)
            sys.modules.pop(shadow)
            sys.modules.update(hidden)
            assert len(found) == taken
            spares.workers += found


def test_one_that_does_not_listen_holds_up_nobody():
    with contextlib.closing(Spares(CLUSTER)) as spares:
        deaf = spares.workers[0]
        deaf.process.send_signal(signal.SIGSTOP)
        for number in range(20_000):
            deaf.preload(f"package.module_{number}")


def test_one_that_is_still_importing_ends_by_itself_when_told(tmp_path):
    with contextlib.closing(Spares(CLUSTER)) as spares:
        engine = LocalEngine(CLUSTER, home=tmp_path, spares=spares)
        (process, *_) = [worker.process for worker in engine._workers.values()]
        engine.close()
        assert process.returncode == 0


def test_workers_end_where_the_store_is_held_by_another(tmp_path):
    before = set(psutil.Process().children())
    with ControllerLock(tmp_path), pytest.raises(StoreBusy):
        run(lambda: grid("dovetail.testing.programs:dropout", seed=[0], steps=9), store=tmp_path, progress=False)
    assert set(psutil.Process().children()) <= before


def test_a_dead_one_is_replaced(tmp_path):
    with contextlib.closing(Spares(CLUSTER)) as spares:
        dead = spares.workers[0].process
        dead.kill()
        dead.wait()
        with contextlib.closing(LocalEngine(CLUSTER, home=tmp_path, spares=spares)) as engine:
            assert list(worker_pids(engine)) == ["n0:1"]
            (tmp_path / "tiny.py").write_text(PROGRAM)
            assert train(engine, tmp_path, f"{tmp_path / 'tiny.py'}:tiny").kind == "finished"
            assert set(worker_pids(engine)) == {"n0:0", "n0:1"}


def test_closed_ones_are_gone():
    spares = Spares(CLUSTER)
    first = numbers(spares)
    assert all(map(psutil.pid_exists, first.values()))
    spares.close()
    assert not spares.workers
    assert not any(map(psutil.pid_exists, first.values()))


def test_where_several_can_compute_on_one_device_some_more_wait_for_that(tmp_path, monkeypatch):
    put_control(tmp_path, monkeypatch)
    kind = Kind(name="cpu", processor="cpu", mps=True)
    few, enough, pair = (
        Cluster.uniform(kind, devices_per_node=n, cores=cores) for n, cores in ((1, 2), (1, 6), (2, 12))
    )
    for cluster, wanted in ((few, [0]), (enough, [0, 1, 2]), (pair, [0, 0])):
        with contextlib.closing(Spares(cluster)) as spares:
            assert [worker.lane for worker in spares.workers] == wanted
    with contextlib.closing(Spares(enough)) as spares:
        numbers = {worker.lane: worker.process.pid for worker in spares.workers}
        assert list(numbers) == [0, 1, 2]
        with contextlib.closing(LocalEngine(enough, home=tmp_path, spares=spares)) as engine:
            assert not spares.workers
            assert len({worker.log for worker in engine._workers.values()}) == len(numbers), "each has its own"
            ground = Ground(engine=engine, cluster=enough, reference=write_program(tmp_path), home=tmp_path)
            tasks = [ground.task() for _ in range(3)]
            order = dataclasses.replace(ground.order(*map(ground.member, tasks)), technique="beside")
            engine.start(order)
            assert {worker.lane: worker.process.pid for worker in engine._workers.values()}.items() >= numbers.items()
            check_ends(order, drain(engine, order))


def test_those_in_lanes_end_where_an_engine_has_none(tmp_path, monkeypatch):
    put_control(tmp_path, monkeypatch)
    kinds = [Kind(name="cpu", processor="cpu", mps=mps) for mps in (True, False)]
    lanes, none = (Cluster.uniform(kind, devices_per_node=1, cores=6) for kind in kinds)
    with contextlib.closing(Spares(lanes)) as spares:
        processes = [worker.process for worker in spares.workers if worker.lane]
        assert len(processes) == 2
        with contextlib.closing(LocalEngine(none, home=tmp_path, spares=spares)) as engine:
            assert [worker.lane for worker in engine._workers.values()] == [0]
            assert [process.wait(60) for process in processes] == [0, 0]
