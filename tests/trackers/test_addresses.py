"""What cannot be tracked is refused before anything is read or trained, with what to do about it."""

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.trackers import TRACKERS, check_trackers
from dovetail.vocabulary import DovetailError


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What `dovetail run` says where it refuses a tracker; it has read nothing by then, and made no store."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "wandb"))
    (tmp_path / "sweep.py").write_text("raise AssertionError('it was read')")

    def run(*more: str) -> str:
        found = CliRunner().invoke(app, ["run", str(tmp_path / "sweep.py"), "--store", str(tmp_path / "s"), *more])
        assert found.exit_code == 2, found.output
        assert not (tmp_path / "s").exists()
        return " ".join(found.output.split())

    return run


def test_an_unknown_tracker(refused):
    said = refused("--track", "mlfow:./mlruns")
    assert "must be mlflow:PLACE, tensorboard:FOLDER or wandb:PROJECT, got 'mlfow:./mlruns'" in said
    assert "did you mean 'mlflow'?" in said


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_missing_extra(refused, kind, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    said = refused("--track", f"{kind}:place")
    assert f"must have the package {kind}; it is not installed" in said
    assert f"pip install 'dovetail[{kind}]'" in said


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_version_that_is_too_old(refused, kind, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1.2")
    said = refused("--track", f"{kind}:place")
    assert f"must have {kind} {TRACKERS[kind].least_version} or newer; 0.1.2 is installed" in said


@pytest.mark.parametrize("address", ["mlflow:{}", "mlflow:sqlite:///{}/a.db", "tensorboard:{}"])
def test_a_directory_that_cannot_be_written(refused, address, tmp_path):
    (tmp_path / "file").touch()
    said = refused("--track", address.format(tmp_path / "file" / "below"))
    assert "directory must be one that this user can write" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_directory_without_permission(refused, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "cannot be written" in refused("--track", f"tensorboard:{tmp_path / 'closed'}")


def test_wandb_where_its_folder_cannot_be_written(refused, tmp_path):
    (tmp_path / "wandb").touch()
    assert "directory must be one that this user can write" in refused("--track", "wandb:project")


def test_models_for_a_tracker_that_keeps_none(refused, tmp_path):
    said = refused("--track", f"tensorboard:{tmp_path}/runs", "--track-models")
    assert "models must go to a tracker that keeps files" in said


def test_the_same_place_twice_is_one_tracker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(check_trackers(["tensorboard:runs", f"tensorboard:{tmp_path}/runs"])) == 1


def test_after_the_fact_there_must_be_a_store(tmp_path):
    found = CliRunner().invoke(app, ["track", f"tensorboard:{tmp_path}/runs", "--store", str(tmp_path / "none")])
    assert found.exit_code == 2
    assert "there must be a store at" in found.output
    with pytest.raises(DovetailError, match="a tracker must be"):
        check_trackers("nothing")
