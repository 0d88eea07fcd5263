"""The page about trackers: its programs and commands do what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.trackers import parse_tracker
from tests.cli.processes import dovetail
from tests.trackers.test_tensorboard import read_scalars

TEXT = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text()
COMMANDS = re.findall(r"^dovetail (.*)$", TEXT, re.MULTILINE)


def test_its_addresses_are_addresses(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    found = re.findall(r"\b(?:mlflow|wandb|tensorboard):[\w./:-]*[\w/]", TEXT)
    assert len(found) > 8
    for address in found:
        parse_tracker(address)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
def test_its_programs_and_commands(tmp_path):
    for name, text in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXT, re.DOTALL):
        (tmp_path / f"{name}.py").write_text(text)
    subprocess.run([sys.executable, "track.py"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert len(read_scalars(tmp_path / "runs" / "line rate=0.1")["size"]) > 0
    assert "track mlflow:./mlruns" in COMMANDS
    found = dovetail("track", "mlflow:./mlruns", cwd=tmp_path)
    assert found.code == 0, found.err
    assert (tmp_path / "mlruns" / "mlflow.db").exists()
