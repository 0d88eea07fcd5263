"""Which weights `dovetail export` writes where the best ones are kept beside the last."""

import dataclasses

import pytest
import safetensors.torch
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.control import open_result
from dovetail.store import Store
from tests.engines.test_runner import Ground


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A store with one finished task, whose score was best after its second step of four."""
    found = tmp_path_factory.mktemp("store")
    ground = Ground(found)
    member = ground.member("scripted", steps=4, name="one", scores=[0.0, 0.1, 0.9, 0.2, 0.3], keep_best="score")
    member = dataclasses.replace(member, directory=str(found / "checkpoints" / member.task.identity))
    with Store(found, write=True) as store:
        store.add(tasks=[("all", member.task)])
    ground.run("train", [member], "resident")
    return found


@pytest.mark.parametrize(("options", "step"), [((), 2), (("--last",), 4)])
def test_the_best_weights_unless_the_last_are_asked_for(home, tmp_path, options, step):
    path = tmp_path / "model.safetensors"
    found = CliRunner().invoke(app, ["export", "one", "-o", str(path), "--store", str(home), *options])
    assert found.exit_code == 0, found.output
    assert safetensors.torch.load_file(path)["rows.0"].item() == -step
    model = open_result(home)["one"].model(last=bool(options))
    assert model.rows[0].item() == -step
