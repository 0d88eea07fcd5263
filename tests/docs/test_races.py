"""The page about races: its program trains and resumes, its commands are ones, and its workload enters as it says."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.describe import load_workload
from dovetail.verbs.race_entries import enter_race
from tests.docs.test_tutorial import check

TEXT = (Path(__file__).parents[2] / "docs" / "races.md").read_text()


def test_its_program_trains_resumes_and_enters_the_race(tmp_path):
    (text,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "sweep.py").write_text(text)
    workload = load_workload(str(tmp_path / "sweep.py"))
    check(workload.tasks[0])
    entries = enter_race(workload, until="accuracy>=0.9", seeds=10)
    assert list(entries.contestants) == ["net width=64", "net width=256"]
    assert len(entries.workload.tasks) == 20


def test_its_options_are_ones():
    said = CliRunner().invoke(app, ["race", "--help"], env={"COLUMNS": "200"}).stdout
    words = {word for line in TEXT.splitlines() for word in re.findall(r"(--[a-z-]+)", line) if "python -m" not in line}
    assert words >= {"--until", "--seeds", "--export", "--clock", "--devices", "--reference", "--log", "--price"}
    assert {word for word in words if word not in said} == set()
    (command,) = re.findall(r"^dovetail race .*$", TEXT, re.MULTILINE)
    assert shlex.split(command)[3:5] == ["--until", "accuracy>=0.9"]
