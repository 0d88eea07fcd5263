"""`dovetail select`: what it prints and writes, how it is stopped and goes on, and what it refuses."""

import contextlib
import dataclasses
import json
import signal

import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.app import app
from dovetail.cli.select import show_selection
from dovetail.selection.record import SelectionTrial
from dovetail.vocabulary import StoreError
from tests.cli.processes import HOME, begin, end, events, until
from tests.selection.conftest import PROGRAM

FOUND = dt.Selection(
    program="plane.py:plane",
    fraction=0.2,
    count=90,
    method="maxgrad",
    strength=0.1,
    indices=(3, 5),
    weights=(1, 1),
    metric="accuracy",
    trials=(
        SelectionTrial(method="random", strength=0.0, scores=(0.7, 0.8)),
        SelectionTrial(method="maxgrad", strength=0.1, scores=(0.9, 0.9)),
    ),
)


def test_the_table_has_the_best_first(capsys):
    show_selection(FOUND)
    head, best, other, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["method", "hardest", "dropped", "validation", "accuracy", "±"]
    assert best.split() == ["maxgrad", "←", "chosen", "10%", "0.9000", "0.0000"]
    assert other.split() == ["random", "0%", "0.7500", "0.0500"]
    assert last == "2 of 90 examples, by maxgrad without the hardest 10%"


def test_of_a_loss_less_is_better(capsys):
    show_selection(dataclasses.replace(FOUND, metric="loss", method="random", strength=0.0))
    assert "random  ← chosen" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fraction", "1.5"], "a fraction must be above 0 and at most 1, got 1.5"),
        (["--fraction", "0"], "a fraction must be above 0 and at most 1, got 0.0"),
        (["--fraction", "0.1", "--method", "maxgrd"], "did you mean 'maxgrad'?"),
        (["--fraction", "0.1", "--strength", "1"], "strengths of the screen must be parts of the examples"),
        (["--fraction", "0.1", "--parameter", "width"], "--parameter must be a name and a value, as in width=128"),
    ],
)
def test_bad_input_is_said_and_ends_with_2(tmp_path, words, said):
    (tmp_path / "plane.py").write_text(PROGRAM)
    found = CliRunner().invoke(app, ["select", f"{tmp_path / 'plane.py'}:plane", *words])
    assert found.exit_code == 2
    assert said in found.output


@pytest.mark.process
def test_it_stops_goes_on_and_writes_what_programs_read(tmp_path, monkeypatch):
    (tmp_path / "plane.py").write_text(PROGRAM)
    words = ["select", "plane.py:plane", "--fraction", "0.3", "--method", "ccs", "--strength", "0.1", "--splits", "2"]
    words += ["--steps", "300", "-p", "rate=0.01", "-o", "chosen.json"]
    process = begin(*words, cwd=tmp_path)
    try:
        until(lambda: _has_begun(tmp_path), what="a student that trains")
        process.send_signal(signal.SIGINT)
    finally:
        stopped = end(process)
    assert stopped.code == 130, stopped.err
    assert "Stopped before the end; run the same command to go on." in stopped.err
    assert not (tmp_path / "chosen.json").exists()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1 of 3: 2 students score the examples that they have not seen" in done.stderr
    assert f"of 90 examples, by {json.loads((tmp_path / 'chosen.json').read_text())['method']}" in done.stdout
    chosen = dt.Selection.open(tmp_path / "chosen.json")
    assert len(chosen.indices) == 27
    again = CliRunner().invoke(app, [*words, "--json", "--engine", "ray", "--address", "nowhere:1"])  # none is asked
    assert tuple(json.loads(again.stdout)["indices"]) == chosen.indices


def _has_begun(folder):
    with contextlib.suppress(StoreError):  # it is just being made
        return (folder / HOME).exists() and events(folder, "plane scores split 1", "started")
