"""The page about selection: its program trains and resumes, with and without a selection, and its command is one."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.app import app
from dovetail.describe import load_workload
from dovetail.train.build import build
from tests.docs.test_tutorial import check

TEXT = (Path(__file__).parents[2] / "docs" / "select.md").read_text()


@pytest.fixture
def digits(tmp_path, monkeypatch):
    (text,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "digits.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    chosen = dt.Selection(
        program="digits.py:classifier",
        fraction=0.1,
        count=1500,
        method="random",
        strength=0.0,
        indices=tuple(range(0, 1500, 10)),
        weights=(1,) * 150,
        metric="accuracy",
        trials=(),
    )
    chosen.save("chosen.json")
    return tmp_path / "digits.py"


def test_its_program_trains_and_resumes_on_what_was_chosen(digits):
    workload = load_workload(str(digits))
    assert len(build(workload.tasks[0]).batches.dataset) == 150
    check(workload.tasks[0])


def test_its_command_is_one(digits):
    (lines,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    words = shlex.split(lines.splitlines()[0])
    assert words[:2] == ["dovetail", "select"]
    found = CliRunner().invoke(app, [*words[1:], "--fraction", "7"])  # the last one counts, and nothing is trained
    assert "a fraction must be above 0 and at most 1, got 7.0" in found.output
