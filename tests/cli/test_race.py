"""A real race: it arrives, goes on after it was stopped, says what seeds do not change, and exports what was run."""

import signal
import subprocess
import sys

import pytest

from tests.cli.processes import begin, dovetail, end, events, until, write

pytestmark = pytest.mark.process

SWEEP = """
import time

import torch
from torch import nn

import dovetail as dt


def net(rate=0.2, seed=0, fixed=False, pause=0.0):
    if fixed:
        torch.manual_seed(0)
    model = nn.Linear(8, 2)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    labels = (inputs[:, 0] > 0).long()

    def loss(model, batch):
        time.sleep(pause)
        return nn.functional.cross_entropy(model(inputs), labels)

    return dt.Training(
        model=model, batches=[torch.zeros(1)] * 5, loss=loss, log_every=1,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate), evaluate_every=5,
        evaluate=lambda model: {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()},
    )


workload = dt.grid(net, fixed=[False, True], steps=400)
slow = dt.grid(net, pause=0.02, steps=400)
"""


def raced(*words, cwd):
    found = dovetail("race", *words, "--json", "--quiet", cwd=cwd)
    assert found.code == 0, found.err
    return found.json()


def test_a_race_is_run_judged_exported_and_shown(tmp_path):
    write(tmp_path, sweep=SWEEP)
    found = raced(
        "sweep.py", "--until", "accuracy>=0.95", "--seeds", "3", "--export", "mlperf:logs", "--output", "race.html",
        "--log", "submission_org=us", cwd=tmp_path,
    )  # fmt: skip
    assert [each["arrived"] for each in found["contestants"]] == [3, 3]
    for contestant in found["contestants"]:
        for run in contestant["runs"]:
            assert run["curve"][-1]["value"] >= 0.95
            assert run["seconds"]["dawnbench"] < run["seconds"]["mlperf"]
            assert run["missed_step"] in (None, run["steps"] - 5)
            assert run["phase_seconds"]["train"] > 0
            assert run["phase_seconds"]["start"] > 0
    assert len(found["speed_ups"]) == 1
    (equal,) = [note for note in found["notes"] if "equal curves" in note]
    assert equal.startswith("net fixed=True: seeds 0, 1, 2 gave")
    logs = sorted((tmp_path / "logs").rglob("result_*.txt"))
    assert len(logs) == 6
    words = ["--usage", "training", "--ruleset", "6.0.0", str(logs[0])]
    checker = [sys.executable, "-m", "mlperf_logging.compliance_checker", *words]
    done = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "SUCCESS" in done.stdout + done.stderr
    page = (tmp_path / "race.html").read_text()
    assert "sweep race" in page
    again = raced("sweep.py", "--until", "accuracy>=0.95", "--seeds", "3", cwd=tmp_path)
    assert again["contestants"] == found["contestants"]  # nothing is run twice


def test_a_race_that_was_stopped_goes_on_where_it_was(tmp_path):
    write(tmp_path, sweep=SWEEP)
    words = ["race", "sweep.py:slow", "--until", "accuracy>=0.95", "--seeds", "1", "--quiet", "--json"]
    process = begin(*words, cwd=tmp_path)
    until(lambda: (tmp_path / ".dovetail").exists() and _evaluations(tmp_path), what="an evaluation")
    process.send_signal(signal.SIGINT)
    assert end(process).code == 130
    before = events(tmp_path, "net seed=0", "stopped")[0]
    found = dovetail(*words, cwd=tmp_path)
    assert found.code == 0, found.err
    (contestant,) = found.json()["contestants"]
    (run,) = contestant["runs"]
    assert contestant["arrived"] == 1
    assert run["interruptions"] == 1
    assert run["stopped_seconds"] > 0
    assert sum(run["phase_seconds"].values()) >= 0.02 * run["steps"]
    assert [event.step for event in events(tmp_path, "net seed=0", "started")] == [0, before.step]
    assert any("the race was stopped" in note for note in found.json()["notes"])


def _evaluations(folder):
    try:
        return events(folder, "net seed=0", "evaluated")
    except Exception:  # the store is not there yet
        return []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sweep.py"], "a race must have a metric and a target to reach"),
        (["sweep.py", "--until", "accuracy"], "a target (--until, until=) must be a metric"),
        (["sweep.py", "--until", "accuracy>=1", "--clock", "mlpref"], "did you mean 'mlperf'?"),
        (["sweep.py", "--until", "accuracy>=1", "--export", "mlperf"], "an export must say where to write"),
        (
            ["sweep.py", "--until", "accuracy>=1", "--reference", "net"],
            "a reference (--reference, reference=) must be one",
        ),
        (["sweep.py", "--until", "accuracy>=1", "--devices", "0"], "--devices (devices=) must be a whole number"),
        (["sweep.py", "--until", "accuracy>=1", "--log", "us"], "--log must be a key and a value"),
    ],
)
def test_bad_input(tmp_path, words, why):
    from typer.testing import CliRunner

    from dovetail.cli.app import app

    write(tmp_path, sweep=SWEEP)
    words = [str(tmp_path / word) if word == "sweep.py" else word for word in words]
    found = CliRunner().invoke(app, ["race", *words, "--store", str(tmp_path / "store"), "--quiet"])
    assert found.exit_code == 2
    assert why in found.stderr


@pytest.mark.slow
def test_a_metric_that_nobody_reports_is_told_with_what_is_reported(tmp_path):
    write(tmp_path, sweep=SWEEP)
    found = dovetail("race", "sweep.py", "--until", "f1>=0.9", "--seeds", "1", "--quiet", cwd=tmp_path)
    assert found.code == 1
    assert "evaluation must report the metric 'f1'" in found.err
    assert "it reports ['accuracy', 'train/loss']" in found.err
