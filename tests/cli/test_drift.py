"""`dovetail drift`: what it says of two files, and that what is to be trained again is submitted once, and why."""

import numpy as np
import pandas as pd
import pytest

from dovetail.store import holder
from tests.cli.processes import HOME, begin, dovetail, end, events, until, write
from tests.cli.test_daemon import in_process, standing
from tests.watch.drift.windows import window

PROGRAM = """
import torch

import dovetail as dt


def line(data="", slope=3.0):
    rows = open(data).read().count(chr(10))
    model = torch.nn.Linear(1, 1)
    return dt.Training(
        model=model,
        batches=[torch.ones(4, 1)],
        loss=lambda model, batch: (model(batch) - rows).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )


workload = dt.workload([dt.task("program.py:line", name="line", steps=3)])
"""


@pytest.fixture
def folder(tmp_path):
    draws = np.random.default_rng(0)
    pd.DataFrame(window(draws, 4_000)).to_csv(tmp_path / "before.csv", index=False)
    pd.DataFrame(window(draws, 4_000)).to_csv(tmp_path / "same.csv", index=False)
    drifted = window(draws, 4_000, where={"a": 1, "b": 2}, slower=3.0, wrong=0.5)
    pd.DataFrame(drifted).to_csv(tmp_path / "after.csv", index=False)
    return write(tmp_path, program=PROGRAM)


OPTIONS = ("--on", "a,b,c", "--metrics", "m", "--label", "y", "--prediction", "predicted")


def test_it_says_what_moved_and_for_whom(folder):
    done = in_process("drift", "before.csv", "after.csv", *OPTIONS, cwd=folder)
    assert done.code == 0, done.err
    assert "a = 1 and b = 2: m at rank" in done.out
    assert "accuracy 98." in done.out
    found = in_process("drift", "before.csv", "after.csv", *OPTIONS, "--json", cwd=folder).json()
    assert found["drifted"]
    assert found["submitted"] is None
    assert found["findings"][0]["values"] == {"a": 1, "b": 2}
    assert {each["name"] for each in found["columns"]} == {"a", "b", "c", "m"}


def test_without_drift_it_says_so_and_submits_nothing(folder):
    done = in_process(
        "drift", "before.csv", "same.csv", *OPTIONS, "--on-drift", "retrain", "--workload", "program.py", cwd=folder
    )
    assert done.code == 0, done.err
    assert "no drift, at 0.05 false alarms" in done.out
    assert "submitted" not in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("absent.csv", "after.csv"), "there is none at absent.csv"),
        (("before.csv", "after.csv", "--on-drift", "page"), "--on-drift must be retrain, got 'page'"),
        (("before.csv", "after.csv", "--on-drift", "retrain"), "--on-drift retrain and --workload must come together"),
        (("before.csv", "after.csv", "--on", "z"), "'z'] are not among its"),
        (("before.csv", "empty.csv"), "the current window must have at least 20 rows to be compared; it has 0"),
        (
            ("before.csv", "after.csv", "--on-drift", "retrain", "--workload", "program.py"),
            "a controller must be running on",
        ),
    ],
)
def test_what_cannot_be_is_refused(folder, words, message):
    (folder / "empty.csv").write_text((folder / "before.csv").read_text().partition("\n")[0] + "\n")
    done = in_process("drift", *words, cwd=folder)
    assert done.code == 2
    assert message in done.err


@pytest.mark.process
def test_a_drift_is_trained_on_once_with_the_reason_on_record(folder):
    words = ("drift", "before.csv", "after.csv", *OPTIONS, "--on-drift", "retrain", "--workload", "program.py")
    process = begin("daemon", cwd=folder)
    try:
        until(lambda: holder(folder / HOME), what="a daemon")
        wrong = in_process(*words, "--data-parameter", "dta", cwd=folder)
        assert (wrong.code, "Did you mean 'data'?" in wrong.err) == (2, True)
        first, again = (in_process(*words, cwd=folder) for _ in range(2))
        assert "1 task submitted with the new data" in first.out, first.err
        assert "these data were submitted before; nothing is done" in again.out, again.err
        (name,) = standing(folder)
        until(lambda: standing(folder)[name]["status"] == "finished", what="the end of training")
        after = in_process(*words, cwd=folder)
        assert "these data were submitted before; nothing is done" in after.out, after.err
        assert dovetail("stop", cwd=folder).code == 0
    finally:
        process.terminate()
        end(process)
    (submitted,) = events(folder, name, "submitted")
    assert submitted.asked_by == "dovetail drift"
    assert submitted.reason.startswith("drift of after.csv from before.csv: a = 1 and b = 2: m at rank")
    assert len(events(folder, name, "finished")) == 1
