"""`dovetail feed`: what it measures of a task's input, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app

SWEEP = """
import random
import threading
import time

import torch
from torch import nn

import dovetail as dt


def wait(number):
    time.sleep(2e-3)
    return torch.full((4,), float(number))


lock = threading.Lock()


def draw(number):
    with lock:
        return torch.full((4,), random.random())


def drawing(rate=0.1):
    training = waiting(rate)
    training.batches = dt.feed(range(1000)).map(draw).batch(8)
    return training


def waiting(rate=0.1, listed=False):
    model = nn.Linear(4, 1)
    return dt.Training(
        model=model,
        batches=[torch.ones(8, 4)] if listed else dt.feed(range(100_000)).map(wait).batch(8),
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
    )


sweep = dt.grid(waiting, rate=[0.1, 0.2], steps=5, name="sweep")
draws = dt.grid(drawing, rate=[0.1], steps=5, name="draws")
lists = dt.grid(waiting, listed=[True], steps=5, name="lists")
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP)
    return path


def run(*words: str):
    return CliRunner().invoke(app, ["feed", *words])


def test_each_stage_the_wall_and_what_would_help(sweep):
    found = run(f"{sweep}:sweep", "--seconds", "0.5", "--cores", "2", "--no-consumer", "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.output)
    assert [stage["name"] for stage in report["stages"]] == ["source", "wait", "batch"]
    wait = report["stages"][1]
    assert wait["workers"] > 1
    assert 0 < wait["rate_alone"] < 1 / 2e-3
    assert 0 <= wait["busy_share"] <= 1
    assert report["batches_per_second"] > 0
    assert report["predicted_per_second"] > 0
    assert report["consumer_per_second"] is None
    assert report["wall"]
    assert len(report["reasons"]) == 4
    assert report["definition"] == "feed(range of 100,000 items).map(wait).batch(8)"


def test_what_was_found_on_the_way_is_said(sweep):
    found = run(f"{sweep}:draws", "--seconds", "0.1", "--no-consumer")
    assert found.exit_code == 0, found.output
    assert "Stage 'draw' draws from global generators and cannot travel" in found.output


def test_what_the_model_takes_bounds_what_is_planned(sweep):
    found = run(f"{sweep}:sweep", "--seconds", "0.2", "--budget", "64 MiB")
    assert found.exit_code == 0, found.output
    assert "the model takes" in found.output
    assert "within 64.0 MiB" in found.output
    assert "'wait' has" in found.output
    head = next(line for line in found.output.splitlines() if line.startswith("stage"))
    assert head.split() == ["stage", "one", "worker", "workers", "busy", "holds"]


def test_a_task_is_chosen_by_its_name(sweep):
    names = json.loads(run(f"{sweep}:sweep", "--seconds", "0.1", "--no-consumer", "--json").output)["task"]
    found = run(f"{sweep}:sweep", "--task", names.replace("0.1", "0.2"), "--seconds", "0.1", "--no-consumer", "--json")
    assert json.loads(found.output)["task"] == names.replace("0.1", "0.2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "--task", "nobody"], "--task must name a task of the workload"),
        (["sweep", "--cores", "0"], "--cores must be a number above 0, got 0."),
        (["sweep", "--budget", "a lot"], "--budget: "),
        (["lists"], "must have batches that a feed can read; it has not: they are a list"),
    ],
)
def test_what_cannot_be_is_refused(sweep, words, said):
    workload, *options = words
    found = run(f"{sweep}:{workload}", *options)
    assert found.exit_code == 2
    assert said in found.output
