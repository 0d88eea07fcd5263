"""What the files of offline runs hold is what the store holds. Without a server, online runs are not tested."""

import json
import sys
from pathlib import Path

import pytest

from dovetail.testing.trackers import TrackerConformance
from dovetail.trackers.wandb import WandbTracker, _records
from dovetail.vocabulary import DovetailError

pytestmark = pytest.mark.filterwarnings("ignore")  # W&B's own


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def records(folder: Path):
    """All records of all files, with the name of the run that each is of."""
    from wandb.proto.wandb_internal_pb2 import Record

    names = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        found = [Record.FromString(content) for content in _records(file.read_bytes())]
        key = file.stem
        for record in found:
            if record.HasField("run"):
                names[key] = record.run.display_name
        yield from ((names[key], key, record) for record in found)


class TestOffline(TrackerConformance):
    def address(self, folder):
        return "wandb:project"

    def read(self, folder):
        by_key = {}
        for name, key, record in records(folder):
            rows = by_key.setdefault((name, key), {})
            if record.HasField("history"):
                for item in record.history.item:
                    metric = item.key or "/".join(item.nested_key)
                    if not metric.startswith("_"):
                        rows.setdefault(metric, []).append((record.history.step.num, json.loads(item.value_json)))
        return {name: rows for (name, _), rows in sorted(by_key.items(), key=lambda pair: pair[0][1]) if rows}

    def statuses(self, folder):
        return {name: record.exit.exit_code for name, _, record in records(folder) if record.HasField("exit")}


def test_a_project_must_be_named():
    with pytest.raises(DovetailError, match=r"wandb:PROJECT or wandb:ENTITY/PROJECT, got ''"):
        WandbTracker.resolve("")


def test_a_server_must_have_a_key(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("NETRC", raising=False)
    place = WandbTracker.resolve("project")
    with pytest.raises(DovetailError, match=r"must have a key for https://api\.wandb\.ai; none was found"):
        WandbTracker.check(place)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    WandbTracker.check(place)


def test_what_wandb_offline_has_noted_counts(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE")
    assert "mode=online" in WandbTracker.resolve("project")
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert "mode=offline" in WandbTracker.resolve("project")


def test_importing_trackers_imports_no_tracker():
    import subprocess

    code = "import sys, dovetail.trackers; assert not {'mlflow', 'wandb', 'tensorboard', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
