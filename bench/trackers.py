"""Trackers beside a run: what arrives where everything is killed, and what they cost.

`python bench/trackers.py [arrive|cost|hang|loop ...] [--turns 12] [--seconds 20] [--quick] [--check]`

- arrive: four tasks with 10,000 points, told to MLflow's database, TensorBoard's files and W&B's (offline), while the
  controller and the trackers' processes are killed again and again. What each holds, read with its own means, is
  compared with the store: every point once.
- cost: a sweep of steps of 5 ms that keeps all cores busy, with all three trackers and with none, by turns: they are
  stopped (SIGSTOP) in between, and have to catch up in their own turns, which is more than they would have to do.
- hang: the same with a tracking server that accepts connections and never answers.
- loop: the same sweep that calls MLflow, W&B and TensorBoard in its own loop, as people do, and does not, by turns.

Of turns that alternate, each kind first every other time, the middle of the ratios counts.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from page_cost import PROGRAM, turn
from reporting import Bar, finish

from dovetail.store import Store
from dovetail.trackers.wandb import _records
from dovetail.vocabulary import StoreError

MOST_SLOWER, MOST_SLOWER_BY_HANGING = 0.01, 0.005
PROCESS = "dovetail.trackers.tracking_process"
TRACK = ("--track", "mlflow:mlruns", "--track", "tensorboard:runs", "--track", "wandb:bench")
POINTS = """
import time

import torch

import dovetail as dt


def curve(number=0):
    model = torch.nn.Linear(1, 1)

    def loss(model, batch):
        time.sleep(0.004)
        return (model(batch) - number).square().mean()

    return dt.Training(
        model=model, batches=[torch.ones(4, 1)], loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.001),
        log_every=1, evaluate_every=5, evaluate=lambda model: {"weight": float(model.weight)},
    )


workload = dt.grid(curve, number=range(4), steps=STEPS)
"""
# What people write in their own loops.
LOOP = PROGRAM.replace(
    "    def loss(model, batch):",
    """
    calls = [0]
    from pathlib import Path

    import mlflow
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    client = mlflow.MlflowClient(tracking_uri="sqlite:///loop.db")
    run = client.create_run("0").info.run_id
    logged = wandb.init(project="bench", mode="offline", settings=wandb.Settings(silent=True, console="off"))
    writer = SummaryWriter(f"runs/{number}")

    def log():
        calls[0] += 1
        if calls[0] % 10 == 0 and Path("on").exists():
            client.log_metric(run, "train/loss", 1.0, step=calls[0])
            logged.log({"train/loss": 1.0}, step=calls[0])
            writer.add_scalar("train/loss", 1.0, calls[0])

    def loss(model, batch):
        log()""",
)


def dovetail(*words: str) -> list[str]:
    return [sys.executable, "-m", "dovetail", *words]


def begin(folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    """The folder's sweep, by the real command."""
    words = dovetail("run", "sweep.py", "--quiet", "--techniques", "resident", *more)
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(folder)}
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=environment)


def tracker_processes(parent: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """The trackers' processes of a run, and what they have started."""
    try:
        children = psutil.Process(parent.pid).children()
        found = [each for each in children if PROCESS in each.cmdline()]
        return [process for each in found for process in (each, *each.children(recursive=True))]
    except psutil.Error:
        return []


# What arrives


def arrive(quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Kill until all is trained; then compare what each tracker holds with the store."""
    folder = Path(tempfile.mkdtemp(prefix="trackers-"))
    steps = 300 if quick else 2100
    (folder / "sweep.py").write_text(POINTS.replace("STEPS", str(steps)))
    kills = _run_with_kills(folder, random.Random(1), most=2 if quick else 24)
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(folder)}
    words = dovetail("track", *(word for word in TRACK if word != "--track"))
    subprocess.run(words, cwd=folder, check=True, env=environment, stderr=subprocess.DEVNULL)
    kept = _kept(folder)
    rows, bars = [], []
    for name, read in {"MLflow": _in_mlflow, "TensorBoard": _in_tensorboard, "W&B, offline": _in_wandb}.items():
        held = collections.Counter(read(folder))
        missing, twice = len(kept - held.keys()), sum(held.values()) - len(held)
        other = len(held.keys() - kept)
        rows.append(
            {"part": "arrive", "tracker": name, "points": len(kept), **kills, "missing": missing, "twice": twice}
        )
        bars.append(
            Bar(
                f"arrive, {name}, points that are missing, there twice, or not the store's",
                missing + twice + other,
                most=0,
            )
        )
    bars.append(Bar("arrive, points", len(kept), least=1000 if quick else 10_000))
    bars.append(Bar("arrive, kills", sum(kills.values()), least=2 if quick else 20))
    shutil.rmtree(folder)
    return rows, bars


def _run_with_kills(folder: Path, draw: random.Random, *, most: int) -> dict[str, int]:
    kills = {"controllers_killed": 0, "trackers_killed": 0}
    while True:
        process = begin(folder, "--save-steps", "50", *TRACK)
        while sum(kills.values()) < most:
            try:
                process.wait(draw.uniform(1.0, 6.0))
                break
            except subprocess.TimeoutExpired:
                pass
            trackers = tracker_processes(process)
            if trackers and draw.random() < 0.6:
                draw.choice(trackers).kill()
                kills["trackers_killed"] += 1
            elif _has_trained(folder):
                process.kill()
                process.wait()
                kills["controllers_killed"] += 1
                break
        if sum(kills.values()) >= most:
            process.wait()
        if process.returncode == 0:
            return kills
        assert process.returncode == -signal.SIGKILL, (folder / "log").read_text()[-2000:]


def _has_trained(folder: Path) -> bool:
    """Whether something is there to be lost, so that killing does not go on before anything begins."""
    try:
        return len(_kept(folder)) > 0
    except StoreError:
        return False


Held = tuple[str, str, int]


def _kept(folder: Path) -> set[Held]:
    with Store(folder / ".dovetail") as store:
        return {
            (task.name, point.name, point.step) for _, task in store.tasks() for point in store.points(task.identity)
        }


def _in_mlflow(folder: Path) -> Iterator[Held]:
    """By MLflow's own client, out of its own store."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlruns/mlflow.db")
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], max_results=1000):
            for key in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, key):
                    yield run.info.run_name, key, metric.step


def _in_tensorboard(folder: Path) -> Iterator[Held]:
    """By TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for each in (folder / "runs").iterdir():
        if each.is_dir():
            found = EventAccumulator(str(each), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
            for tag in found.Tags()["scalars"]:
                yield from ((each.name, tag, scalar.step) for scalar in found.Scalars(tag))


def _in_wandb(folder: Path) -> Iterator[Held]:
    """Out of the files that `wandb sync` would upload."""
    from wandb.proto.wandb_internal_pb2 import Record

    names: dict[str, str] = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for record in map(Record.FromString, _records(file.read_bytes())):
            if record.HasField("run"):
                names[file.stem] = record.run.display_name
            if record.HasField("history"):
                for item in record.history.item:
                    metric = item.key or "/".join(item.nested_key)
                    if not metric.startswith("_"):
                        yield names[file.stem], metric, record.history.step.num


# What they cost


def pairs(
    home: Path, turns: int, seconds: float, switch: Callable[[bool], None], computed: Callable[[], float]
) -> dict[str, float]:
    """Steps a second with and without, by turns, and what was computed beside."""
    rows = []
    for number in range(turns):
        found: dict[str, float] = {}
        for kind in (True, False) if number % 2 else (False, True):
            switch(kind)
            time.sleep(1.0)
            before = computed()
            found["with" if kind else "without"] = turn(home, seconds)
            if kind:
                found["share"] = (computed() - before) / seconds
        rows.append(found)
    switch(True)
    ratios = sorted(row["with"] / row["without"] for row in rows)
    return {
        "pairs": turns,
        "with": statistics.median(row["with"] for row in rows),
        "without": statistics.median(row["without"] for row in rows),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[len(ratios) // 4],
        "ratio_high": ratios[-1 - len(ratios) // 4],
        "trackers_share_of_a_core": statistics.median(row["share"] for row in rows),
    }


def _beside(turns: int, seconds: float, *track: str, ready: Callable[[Path], bool]) -> dict[str, float]:
    """A busy sweep with these trackers, which are stopped and go on by turns."""
    folder = Path(tempfile.mkdtemp(prefix="trackers-"))
    (folder / "sweep.py").write_text(PROGRAM.replace("TASKS", str(os.cpu_count())))
    process = begin(folder, *track)
    _until(lambda: _has_trained(folder) and ready(folder), "the sweep and its trackers")
    trackers = tracker_processes(process)
    try:
        return pairs(
            folder / ".dovetail", turns, seconds, lambda on: _switch(trackers, on), lambda: _computed(trackers)
        )
    finally:
        for each in trackers:
            each.kill()
        process.terminate()
        _switch(tracker_processes(process), True)
        process.wait()
        shutil.rmtree(folder)


def _until(holds: Callable[[], bool], what: str) -> None:
    due = time.monotonic() + 400
    while not holds():
        assert time.monotonic() < due, f"{what} must have begun by now"
        time.sleep(1.0)


def _switch(processes: list[psutil.Process], on: bool) -> None:
    for each in processes:
        each.send_signal(signal.SIGCONT if on else signal.SIGSTOP)


def _computed(processes: list[psutil.Process]) -> float:
    return float(sum(times.user + times.system for each in processes for times in [each.cpu_times()]))


def _all_have_begun(folder: Path) -> bool:
    """Whether each tracker holds some points."""
    try:
        with sqlite3.connect(f"file:{folder}/mlruns/mlflow.db?mode=ro", uri=True) as connection:
            in_mlflow = connection.execute("SELECT count(*) FROM metrics").fetchone()[0]
    except sqlite3.Error:
        return False
    return bool(in_mlflow and any((folder / "runs").glob("*/*tfevents*")) and any(_in_wandb(folder)))


def cost(turns: int, seconds: float) -> tuple[list[dict[str, Any]], list[Bar]]:
    """All three trackers."""
    row = _beside(turns, seconds, *TRACK, ready=_all_have_begun)
    return [{"part": "cost", **row}], [
        Bar("cost, share by which training is slower", 1 - row["ratio"], most=MOST_SLOWER)
    ]


def hang(turns: int, seconds: float) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A server that accepts, reads and never answers."""
    asked: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    asked.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        place = f"mlflow:http://127.0.0.1:{server.getsockname()[1]}"
        row = _beside(turns, seconds, "--track", place, ready=lambda folder: bool(asked))
    name = "hang, share by which training is slower"
    return [{"part": "hang", **row}], [Bar(name, 1 - row["ratio"], most=MOST_SLOWER_BY_HANGING)]


def loop(turns: int, seconds: float) -> tuple[list[dict[str, Any]], list[Bar]]:
    """What people do instead: it has no bar."""
    folder = Path(tempfile.mkdtemp(prefix="trackers-"))
    (folder / "sweep.py").write_text(LOOP.replace("TASKS", str(os.cpu_count())))
    process = begin(folder)
    on = folder / "on"
    try:
        _until(lambda: _has_trained(folder), "the sweep")
        row = pairs(
            folder / ".dovetail",
            turns,
            seconds,
            lambda yes: on.touch() if yes else on.unlink(missing_ok=True),
            lambda: 0.0,
        )
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)
    return [{"part": "loop", **row}], []


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["arrive", "cost", "hang", "loop"])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    turns, seconds = (2, 3.0) if chosen.quick else (chosen.turns, chosen.seconds)
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for part in chosen.parts:
        found = (
            arrive(chosen.quick)
            if part == "arrive"
            else {"cost": cost, "hang": hang, "loop": loop}[part](turns, seconds)
        )
        rows, bars = rows + found[0], bars + found[1]
    return finish("trackers", rows, bars, check=chosen.check, quick=chosen.quick, part_by="part")


if __name__ == "__main__":
    sys.exit(main())
