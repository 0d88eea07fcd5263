"""Searches of real trainings: pruners and populations, stopped and gone on, and what `dovetail run` makes of a file."""

import collections
import functools
import json
import os
import subprocess
import sys
import textwrap

import optuna
import pytest

import dovetail as dt
from dovetail.engines import LocalEngine, Spares, detect

pytestmark = pytest.mark.process

PROGRAM = """
import torch
from torch import nn
import dovetail as dt

torch.manual_seed(0)
inputs = torch.randn(64, 4)
outputs = inputs.sum(1, keepdim=True)


def line(rate=0.1, drop=0.0, every=5, seed=0):
    model = nn.Sequential(nn.Dropout(drop), nn.Linear(4, 1))
    return dt.Training(
        model=model,
        batches=[(inputs[:32], outputs[:32]), (inputs[32:], outputs[32:])],
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        evaluate=lambda model: {"error": (model(inputs) - outputs).square().mean().item()},
        evaluate_every=every,
    )
"""
SPACE = {"rate": dt.log_uniform(1e-4, 1e-1), "drop": dt.uniform(0.0, 0.1)}


@pytest.fixture(scope="module")
def engine():
    """Workers that stay, for runs on many stores."""
    spares = Spares(detect(), lasting=True)
    yield functools.partial(LocalEngine, spares=spares)
    spares.close()


@pytest.fixture
def program(tmp_path):
    (tmp_path / "line.py").write_text(PROGRAM)
    return f"{tmp_path / 'line.py'}:line"


def carry_out(found: dt.Search, store, engine, **how):
    return dt.run(found, store=store, engine=engine, progress=False, settings=dt.Settings(exact=True), **how)


def test_a_pruner_of_optunas_ends_tasks_and_what_they_evaluated_to_is_in_the_study(tmp_path, program, engine):
    class Below(optuna.pruners.BasePruner):
        """Ends the second trial as soon as it is asked."""

        def prune(self, study, trial):
            return trial.number == 1

    space = SPACE | {"every": 100}
    found = dt.Search(program, space, metric="error", steps=4000, count=3, pruner=Below(), at_once=1)
    result = carry_out(found, tmp_path / "store", engine)
    trials = result.study().trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "COMPLETE"]
    pruned = result[trials[1].user_attrs["task"]]
    assert (pruned.status, pruned.step < 4000) == ("pruned", True)
    assert "Below pruned it: error" in pruned.reason
    assert pruned.directory.exists()
    assert list(trials[0].intermediate_values) == list(range(100, 4001, 100))
    assert trials[0].value == result[trials[0].user_attrs["task"]].metrics["error"]


class Enough(Exception):
    """What a callback raises to stop a run in its midst."""


def test_a_population_that_was_stopped_comes_to_the_very_same(tmp_path, program, engine):
    rule = dt.Population(every_steps=10, replaced=0.5)
    found = dt.Search(program, SPACE, metric="error", steps=40, count=4, sampler=rule, name="population")
    whole = carry_out(found, tmp_path / "whole", engine)
    told, left = collections.Counter(), 5

    def stop_soon(*_):
        nonlocal left
        left -= 1
        if left == 0:
            raise Enough

    for after in (5, 4, 8):
        left = after
        with pytest.raises(Enough):
            carry_out(found, tmp_path / "parts", engine, on_evaluate=stop_soon)
    parts = carry_out(found, tmp_path / "parts", engine)
    for result in (whole, parts):
        told.update(
            (trial.number, trial.state.name, trial.value, json.dumps(trial.params), trial.user_attrs.get("parent"))
            for trial in result.study().trials
        )
    assert set(told.values()) == {2}
    assert len(told) == 4 + 2 * 3  # two clones at the end of each of three generations
    assert {name: task.metrics for name, task in _by_name(whole)} == {
        name: task.metrics for name, task in _by_name(parts)
    }
    clones = [trial for trial in whole.study().trials if "parent" in trial.user_attrs]
    assert all(whole[trial.user_attrs["task"]].task.begins_with for trial in clones)


def _by_name(result):
    return [(task.name, task) for task in result.tasks]


def test_dovetail_run_takes_a_search_and_its_study_can_be_drawn(tmp_path, program):
    (tmp_path / "look.py").write_text(
        PROGRAM + "\nsearch = dt.Search(line, {'rate': dt.log_uniform(1e-4, 1e-1), 'drop': dt.uniform(0.0, 0.1)}, "
        "metric='error', steps=20, count=4)\n"
    )
    words = [sys.executable, "-m", "dovetail", "run", "look.py", "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 trials, best error " in done.stderr
    rows = json.loads(done.stdout)["tasks"]
    assert len(rows) == 4
    study = dt.open_result(tmp_path / ".dovetail", workload="look").study()
    assert {row["task"] for row in rows} == {trial.user_attrs["task"] for trial in study.trials}
    figure = optuna.visualization.plot_optimization_history(study)
    assert len(figure.data[0].y) == 4


@pytest.mark.slow
def test_a_search_in_a_notebook_travels_with_its_function(tmp_path, engine):
    scope: dict[str, object] = {}
    exec(textwrap.dedent(PROGRAM), scope)
    found = dt.search(
        scope["line"],
        {"rate": [0.1, 0.01]},
        metric="error",
        steps=9,
        count=2,
        store=tmp_path / "store",
        engine=engine,
        progress=False,
    )
    assert [task.status for task in found.tasks] == ["finished"] * 2
