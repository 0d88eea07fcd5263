"""Law 1 and law 3, shown: killed at random moments, again and again, a task ends bit for bit where it would have
ended in one go, its parameters, optimizer state, data position and metric history included."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from dovetail.control import Controller, Settings, open_result
from dovetail.describe import load_workload
from dovetail.engines import LocalEngine
from dovetail.engines.worker import PROCESS_NAME
from dovetail.store import Store
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind
from tests.engines.forking import forking_engine
from tests.engines.worker_pids import worker_pids

# Twenty take a minute or more: CI makes do with fewer, and with the same laws.
KILLS = [4, pytest.param(20, marks=pytest.mark.slow)]

# torch is imported inside, so that a controller starts quickly and most kills meet training.
SWEEP = """
import dovetail as dt

def net(dropout=0.2, seed=0):
    import time, torch
    from torch import nn
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 5))
    inputs = torch.randn(256, 20, generator=torch.Generator().manual_seed(1))
    labels = inputs[:, :5].argmax(1)
    data = torch.utils.data.TensorDataset(inputs, labels)
    order = torch.Generator().manual_seed(seed)  # carried from epoch to epoch
    batches = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, generator=order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(model, batch):
        time.sleep(0.004)  # long enough for kills to meet every kind of moment
        inputs, labels = batch
        noisy = inputs + 0.1 * torch.randn_like(inputs)
        return nn.functional.cross_entropy(model(noisy), labels), {"noise": noisy.std()}

    def evaluate(model):
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean()}

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    return dt.Training(model=model, batches=batches, loss=loss, optimizer=optimizer, schedule=schedule,
                       evaluate=evaluate, evaluate_every=25, clip_norm=1.0, accumulate=2, log_every=1)

workload = dt.grid(net, seed=[0, 1], steps=300, name="exact")
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "sweep.py"
    path.write_text(SWEEP)
    return path


@pytest.fixture(scope="module")
def undisturbed(sweep: Path) -> Path:
    home = sweep.parent / "undisturbed"
    _run(sweep, home)
    return home


def cluster() -> Cluster:
    return Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=min(2, len(os.sched_getaffinity(0))))


def _run(sweep: Path, home: Path, *, nemesis: "Nemesis | None" = None) -> None:
    workload = load_workload(str(sweep))
    with Store(home, write=True) as store:
        engine = forking_engine(cluster(), home=home)
        controller = Controller(
            workload,
            cluster=cluster(),
            store=store,
            engine=engine,
            settings=Settings(save_every_steps=7, retries=10_000, exact=True),
            observe=nemesis.strike(engine) if nemesis else lambda controller: None,
        )
        controller.reconcile()
        controller.measure()
        controller.run()
        engine.close()


class Nemesis:
    """Kills workers at random moments, again and again: most while they train, some from their start on, which on a
    slow machine they may never be done with while kills are left."""

    def __init__(self, seed: int, kills: int) -> None:
        self._random = random.Random(seed)
        self._wanted, self.kills = kills, 0
        self._due: dict[int, float] = {}
        self._spared: dict[int, bool] = {}

    def strike(self, engine: LocalEngine):
        def observe(controller: Controller) -> None:
            if controller.phase != "running" or self.kills >= self._wanted:
                return
            for devices, process in worker_pids(engine).items():
                if self._spared.setdefault(process, self._random.random() < 0.75) and devices not in training(
                    controller
                ):
                    continue  # until it trains
                due = self._due.setdefault(process, time.monotonic() + self._random.uniform(0.0, 2.0))
                if time.monotonic() > due and self.kills < self._wanted:
                    os.kill(process, signal.SIGKILL)
                    self.kills += 1

        return observe


def training(controller: Controller) -> set[str]:
    """The devices, as an engine names a worker by them, on which steps have been taken in this attempt."""
    spans = [one.spans[-1] for one in controller.progress.values() if one.status == "running"]
    return {",".join(span.devices) for span in spans if span.to_step > span.from_step}


def assert_same(one: Path, other: Path) -> None:
    first, second = open_result(one, workload="exact"), open_result(other, workload="exact")
    assert len(first.tasks) == len(second.tasks) == 2
    for before, after in zip(first.tasks, second.tasks, strict=True):
        assert (before.status, before.step) == (after.status, after.step) == ("finished", 300)
        assert before.history == after.history
        assert len(before.history["train/loss"]) == 300
        assert len(before.history["accuracy"]) == 12
        states = [checkpoint.read(checkpoint.complete(task.directory)[0]) for task in (before, after)]
        assert states[0].tensors.keys() == states[1].tensors.keys()
        for name, tensor in states[0].tensors.items():
            assert torch.equal(tensor, states[1].tensors[name]), name
        for part in ("model", "optimizers", "schedule", "feed", "random"):
            assert states[0].values[part] == states[1].values[part], part


def assert_nothing_lost(home: Path) -> None:
    """From the events alone: nothing that was saved is done again, and every task finishes once."""
    with Store(home) as store:
        saved: dict[str, int] = {}
        finished: list[str] = []
        for _, event in store.events():
            if event.kind == "saved":
                assert event.step > saved.get(event.task, 0)
                saved[event.task] = event.step
            elif event.kind == "finished":
                finished.append(event.task)
        assert sorted(finished) == sorted(saved)


@pytest.mark.process
@pytest.mark.parametrize("most", KILLS)
def test_workers_killed_at_random_moments_change_nothing(sweep: Path, undisturbed: Path, most: int) -> None:
    nemesis, lost = Nemesis(seed=1, kills=most), []
    for home in rounds(sweep, f"{most}-workers"):
        _run(sweep, home, nemesis=nemesis)
        assert_same(undisturbed, home)
        assert_nothing_lost(home)
        with Store(home) as store:
            lost += [event.reason for _, event in store.events() if event.kind == "lost"]
        if nemesis.kills >= most:
            break
    assert lost
    assert all("SIGKILL" in reason for reason in lost)


@pytest.mark.process
@pytest.mark.parametrize("most", KILLS)
def test_controllers_killed_at_random_moments_change_nothing(sweep: Path, undisturbed: Path, most: int) -> None:
    chance, kills = random.Random(2), 0
    for home in rounds(sweep, f"{most}-controllers"):
        command = [sys.executable, "-m", "dovetail", "run", str(sweep), "--exact", "--store", str(home)]
        command += ["--save-steps", "7", "--retries", "10000", "--json"]
        while _survives(command, chance.uniform(0.2, 5.0) if kills < most else None) is False:
            kills += 1
        assert_same(undisturbed, home)
        assert_nothing_lost(home)
        assert_no_worker_left(home)
        if kills >= most:
            break


def rounds(sweep: Path, who: str) -> Iterator[Path]:
    """A fast machine may finish before it was killed often enough: then it is done again from the start."""
    return (sweep.parent / f"{who}-killed-{number}" for number in itertools.count())


def _survives(command: list[str], seconds: float | None) -> bool:
    """Whether a command ends, well, before it is killed after so many seconds (None: never)."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode == 0, errors
    return True


def assert_no_worker_left(home: Path) -> None:
    """Workers end when their controller does, however it ended."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        left = [p for p in psutil.process_iter(["name"]) if _is_worker_of(p, home)]
        if not left:
            return
        time.sleep(0.2)
    pytest.fail(f"workers outlived their controller: {left}")


def _is_worker_of(process: psutil.Process, home: Path) -> bool:
    try:
        if process.info["name"] != PROCESS_NAME:
            return False
        return any(str(home) in file.path for file in process.open_files())
    except psutil.Error:
        return False
