"""The page about trackers: its programs and commands do what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.describe import load_workload
from dovetail.trackers import parse_tracker
from tests.cli.processes import dovetail
from tests.docs.test_tutorial import check
from tests.trackers.test_tensorboard import read_scalars

TEXT = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text()
COMMANDS = re.findall(r"^dovetail (.*)$", TEXT, re.MULTILINE)


def test_its_addresses_are_addresses(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    found = re.findall(r"\b(?:mlflow|wandb|tensorboard):[\w./:-]*[\w/]", TEXT)
    assert len(found) > 8
    for address in found:
        parse_tracker(address)


def write_programs(folder: Path) -> None:
    for name, text in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXT, re.DOTALL):
        (folder / f"{name}.py").write_text(text)


def test_its_program_trains_and_resumes(tmp_path):
    write_programs(tmp_path)
    workload = load_workload(str(tmp_path / "sweep.py"))
    assert len(workload.tasks) == 2
    check(workload.tasks[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_its_programs_and_commands(tmp_path):
    write_programs(tmp_path)
    subprocess.run([sys.executable, "track.py"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert len(read_scalars(tmp_path / "runs" / "line rate=0.1")["size"]) > 0
    assert "track mlflow:./mlruns" in COMMANDS
    found = dovetail("track", "mlflow:./mlruns", cwd=tmp_path)
    assert found.code == 0, found.err
    assert (tmp_path / "mlruns" / "mlflow.db").exists()
