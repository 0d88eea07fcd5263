"""The page about renting: its table is one, and its commands say what it says they do."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from tests.bench.test_quick import SWEEP

TEXT = (Path(__file__).parents[2] / "docs" / "market.md").read_text()
(TABLE,) = re.findall(r"```csv\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [shlex.split(line)[1:] for line in TEXT.splitlines() if line.startswith("dovetail ")]


def test_its_commands_are_these() -> None:
    assert [words[0] for words in COMMANDS] == ["plan", "simulate", "simulate"]


@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words[:4]) for words in COMMANDS])
def test_its_commands_run(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.csv").write_text(TABLE)
    Path("sweep.py").write_text(SWEEP)
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    said = "less than the best single choice" if words[0] == "plan" else "dovetail, looking ahead"
    assert said in done.stdout


def test_its_options_are_ones() -> None:
    said = "".join(
        CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "250"}).stdout for name in ("plan", "simulate")
    )
    words = set(re.findall(r"(--[a-z][a-z-]*)", TEXT))
    assert words >= {
        "--market",
        "--at",
        "--move",
        "--lost",
        "--speed",
        "--same-pace",
        "--every",
        "--work",
        "--deadline",
    }
    assert {word for word in words if word not in said} == set()
