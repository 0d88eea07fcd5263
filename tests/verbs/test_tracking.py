"""Trackers beside a run: told while it goes on, started again where they die, and no hindrance where they hang."""

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.app import app
from dovetail.store import Point, Store
from dovetail.trackers import parse_tracker
from dovetail.verbs import tracking
from tests.trackers.test_tensorboard import read_scalars
from tests.web.synthetic import make_task

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]


def tracker_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "dovetail.trackers.tracking_process" in " ".join(child.cmdline())
    ]


def sent(tmp_path: Path) -> dict[str, list[int]]:
    return {
        each.name: [step for step, _ in read_scalars(each)["train/loss"]]
        for each in (tmp_path / "runs").iterdir()
        if each.is_dir()
    }


def kept(tmp_path: Path) -> dict[str, list[int]]:
    with Store(tmp_path / "store") as store:
        return {
            task.name: [point.step for point in store.points(task.identity, name="train/loss")]
            for _, task in store.tasks()
        }


def test_a_tracker_that_is_killed_and_one_that_hangs_hold_up_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tracking, "WAIT_SECONDS", 4.0)
    killed = []

    def kill(*told):
        if not killed and (found := tracker_processes()):
            killed.append(found[0].pid)
            os.kill(found[0].pid, signal.SIGKILL)

    workload = dt.grid("dovetail.testing.programs:dropout", seed=[0, 1], steps=60)
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts, and never answers
        hanging = f"mlflow:http://127.0.0.1:{server.getsockname()[1]}"
        track = [f"tensorboard:{tmp_path}/runs", hanging]
        result = dt.run(workload, store=tmp_path / "store", progress=False, track=track, on_metric=kill)
    assert killed
    assert {task.status for task in result.tasks} == {"finished"}
    assert not tracker_processes()
    count = sum(len(points) for task in result.tasks for points in task.history.values())
    said = capsys.readouterr().err
    assert f"{count} points are not sent to {hanging} yet" in said
    assert f"send it: dovetail track {hanging} --store {tmp_path}/store" in said
    # Where a machine is busy otherwise, files may not be whole by then either: this makes them so.
    found = CliRunner().invoke(app, ["track", track[0], "--store", str(tmp_path / "store")])
    assert found.exit_code == 0, found.output
    assert "new points sent to tensorboard:" in found.output
    assert sent(tmp_path) == kept(tmp_path)


def test_the_end_of_its_input_is_what_a_tracker_hears_of_its_controller(tmp_path):
    """As where that is killed: what there is gets sent, then it ends."""
    task = make_task("a")
    points = [Point(task=task.identity, name="train/loss", step=n, value=1.0, at_seconds=n) for n in range(9)]
    with Store(tmp_path / "store", write=True) as store:
        store.add(tasks=[("w", task)], points=points)
    address = parse_tracker(f"tensorboard:{tmp_path}/runs")
    process = tracking.TrackerProcess(address, tmp_path / "store", workload=None, models=False)
    process.end()
    assert process.wait(100.0)
    assert sent(tmp_path) == kept(tmp_path) == {"a": list(range(9))}
