"""Which weights `dovetail export` writes where the best ones are kept beside the last."""

import dataclasses

import pytest
import safetensors.torch
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.control import open_result
from dovetail.store import Point, Store
from dovetail.vocabulary.events import StepsDone
from tests.engines.test_runner import Ground

SCORES = {"one": [0.0, 0.1, 0.9, 0.2, 0.3], "two": [0.0, 0.5, 0.1, 0.1, 0.4]}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A store with two finished tasks of four steps: `one` was best after its second step, `two` is better at last."""
    found = tmp_path_factory.mktemp("store")
    ground = Ground(found)
    for name, scores in SCORES.items():
        member = ground.member("scripted", steps=4, name=name, scores=scores, keep_best="score")
        member = dataclasses.replace(member, directory=str(found / "checkpoints" / member.task.identity))
        ground.run("train", [member], "resident")
        with Store(found, write=True) as store:
            store.add(tasks=[("all", member.task)], events=ground.events, points=_points(ground.events))
        ground.events.clear()
    return found


def _points(events):
    return [
        Point(task=event.task, name=name, step=step, value=value, at_seconds=event.at_seconds)
        for event in events
        if isinstance(event, StepsDone)
        for name, step, value in event.points
    ]


@pytest.mark.parametrize(("options", "step"), [((), 2), (("--last",), 4)])
def test_the_best_weights_unless_the_last_are_asked_for(home, tmp_path, options, step):
    path = tmp_path / "model.safetensors"
    found = CliRunner().invoke(app, ["export", "one", "-o", str(path), "--store", str(home), *options])
    assert found.exit_code == 0, found.output
    assert safetensors.torch.load_file(path)["rows.0"].item() == -step
    model = open_result(home)["one"].model(last=bool(options))
    assert model.rows[0].item() == -step


@pytest.mark.parametrize(("options", "name", "value", "step"), [((), "one", 0.9, 2), (("--last",), "two", 0.4, 4)])
def test_the_best_task_is_the_one_whose_exported_weights_are(home, tmp_path, options, name, value, step):
    path = tmp_path / "model.safetensors"
    found = CliRunner().invoke(app, ["export", "--best", "score", "-o", str(path), "--store", str(home), *options])
    assert found.exit_code == 0, found.output
    assert found.output == f"{path}  ({name}, score {value})\n"
    assert safetensors.torch.load_file(path)["rows.0"].item() == -step
    assert open_result(home).best("score", last=bool(options)).name == name
