"""`dovetail drift`: what it says of two files, and that what is to be trained again is submitted once, and why."""

import contextlib
import re
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

from dovetail.store import Store, holder
from dovetail.verbs.retrain import RowTraining
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


def test_why_of_two_files_says_the_same(folder):
    words = ("before.csv", "after.csv", "--on", "a,b,c", "--label", "y", "--prediction", "predicted")
    why, drift = (in_process(command, *words, "--json", cwd=folder).json() for command in ("why", "drift"))
    assert why == drift
    assert why["findings"]


def test_why_of_a_measure_says_who_changed_its_mean(folder):
    done = in_process("why", "before.csv", "after.csv", "--on", "a,b,c", "--measure", "m", cwd=folder)
    assert done.code == 0, done.err
    assert "Who changed the mean of m from before.csv to after.csv?" in done.out
    assert "a = 1 and b = 2: the mean of m " in done.out
    found = in_process(
        "why", "before.csv", "same.csv", "--on", "a,b", "--measure", "m", "--ratio", "sum_shift", "--json", cwd=folder
    ).json()
    assert found[0]["lines"] == ["no combination changed by more than chance"]
    one_file = in_process(
        "why", "after.csv", "--outliers", "c > 4", "--measure", "m", "--on", "a,b", "--json", cwd=folder
    ).json()
    assert one_file[0]["question"] == "who changed the mean of m in rows with c > 4?"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("before.csv", "after.csv", "--outliers", "m > 1"), "--outliers must not come with two files of rows"),
        (("before.csv", "after.csv", "--best", "5"), "--best must not come with two files of rows"),
        (("before.csv", "--outliers", "m > 1", "--label", "y"), "--label must come with two files of rows to compare"),
        (("before.csv", "--on-drift", "retrain"), "--on-drift must come with two files of rows to compare"),
        (
            ("before.csv", "after.csv", "--measure", "m", "--on-drift", "retrain"),
            "two files of rows to compare, and wit",
        ),
        (("before.csv", "after.csv", "--on-drift", "retrain"), "--on-drift retrain and --workload must come together"),
        (("before.csv", "after.csv", "--ratio", "risk"), "--ratio must come with --measure where two files of rows"),
        (("before.csv", "after.csv", "--show", "growing"), "--show must come with --measure where two files of rows"),
        (("before.csv", "after.csv", "--least-support", "0.2"), "--least-support must come with --measure where two"),
        (("before.csv", "after.csv", "--ranges", "m"), "--ranges must come with --measure where two files of rows"),
        (("before.csv", "after.csv", "--measure", "z"), "a measure must be a column of both tables, which share"),
        (("before.csv", "after.csv", "--measure", "m", "--ratio", "risk"), "a measure must come with a ratio of mean_"),
        (("--measure", "m"), "--measure must come with a file of rows; of the store's tasks, ask with --where."),
        (("before.csv", "words.csv", "--measure", "m"), "columns of before.csv and words.csv must have the same types"),
    ],
)
def test_what_why_cannot_compare_is_refused(folder, words, message):
    (folder / "words.csv").write_text("a,m\nx,y\n")
    done = in_process("why", *words, cwd=folder)
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
        asked = ("why", "before.csv", "after.csv", "--on", "a,b,c", "--on-drift", "retrain", "--workload", "program.py")
        first, again = in_process(*asked, cwd=folder), in_process(*words, cwd=folder)
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
    assert submitted.asked_by == "dovetail why"
    assert submitted.reason.startswith("drift of after.csv from before.csv: a = 1 and b = 2: ")
    assert len(events(folder, name, "finished")) == 1


SERVED = """
import safetensors.torch
import torch

import dovetail as dt


def classify(data="", rate=0.01):
    model = torch.nn.Linear(2, 2)
    inputs = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    if data:
        found = safetensors.torch.load_file(data)
        inputs, labels = found["inputs"], found["outputs"].argmax(1)
    return dt.Training(
        model=model,
        batches=[(inputs, labels)],
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.Adam(model.parameters(), lr=rate),
        evaluate=lambda model: {"rows": float(len(inputs))},
        held_out=[(inputs, labels)],
    )


workload = dt.workload([dt.task("served.py:classify", name="classify", steps=3)])
"""


@pytest.mark.process
def test_a_server_that_sees_drift_has_its_rows_trained_on_once(tmp_path):
    folder = write(tmp_path, served=SERVED)
    log, daemon = folder / "server.log", begin("daemon", cwd=folder)
    try:
        until(lambda: holder(folder / HOME), what="a daemon")
        assert in_process("submit", "served.py", cwd=folder).code == 0
        until(lambda: standing(folder)["classify"]["status"] == "finished", what="a model")
        asked = ("serve", "--best", "rows", "--port", "0", "--on-drift", "retrain", "--workload", "served.py")
        wrong = in_process(*asked, "--data-parameter", "dta", cwd=folder)
        assert (wrong.code, "Did you mean 'data'?" in wrong.err) == (2, True)
        with log.open("w") as file:
            server = begin(*asked, cwd=folder, stdout=file)
        try:
            url = until(lambda: re.search(r"http://\S+/predict", log.read_text()), what="a server")[0]
            draws = np.random.default_rng(0)

            def drifted():
                rows = draws.normal((0.0, 4.0), size=(250, 2))
                assert httpx.post(url, json={"inputs": rows.tolist()}).status_code == 200
                return re.search("1 task submitted: trained on the rows in (.*)", log.read_text())

            path = folder / until(drifted, what="a drift")[1]
        finally:
            server.terminate()
            assert end(server).code == 0
        with contextlib.chdir(folder):  # a server that is started again and sees other rows submits nothing again
            again = RowTraining("served.py", parameter="data", store=Path(HOME))
            came = again({"model": "classify", "rows": 600.0}, "answers", {"inputs": np.zeros((9, 2))}, "drift")
        assert came == f"submitted before: trained on the rows in {path.relative_to(folder)}"
        (name,) = [name for name in standing(folder) if ", data " in name]
        until(lambda: standing(folder)[name]["status"] == "finished", what="the end of training")
        assert dovetail("stop", cwd=folder).code == 0
    finally:
        daemon.terminate()
        end(daemon)
    (event,) = events(folder, name, "submitted")
    assert event.asked_by == "dovetail serve"
    assert event.reason.startswith("drift of answers, in ")
    assert event.reason.endswith(", as 'classify' answered")
    assert "inputs[1] = above" in event.reason
    rows_seen = safetensors.numpy.load_file(path)
    assert len(rows_seen["inputs"]) % 500 == 0
    assert rows_seen["inputs"][:, 1].mean() > 3
    with Store(folder / HOME) as store:
        (identity,) = [task.identity for _, task in store.tasks() if task.name == name]
        assert [each.last for each in store.summarise_points(identity) if each.name == "rows"] == [
            len(rows_seen["inputs"])
        ]
