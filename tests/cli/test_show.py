"""Tables of tasks: which columns they have, and in which order their rows stand."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app


def _row(name: str, **metrics: float) -> dict[str, object]:
    return {
        "task": name,
        "id": f"{name}0000",
        "status": "running",
        "step": 5,
        "steps": 9,
        "priority": 1.0,
        "start_seconds": 100.0,
        "end_seconds": None,
        "why": "on n0:0",
        "metrics": metrics,
        "parameters": {"rate": 0.1},
    }


@pytest.fixture
def listed(monkeypatch):
    """What `dovetail list` prints, with these options, of two tasks of which one has reported."""
    monkeypatch.setenv("COLUMNS", "200")
    tasks = [_row("new"), _row("old", **{"accuracy": 0.875, "train/loss": 0.25})]
    answer = {"tasks": tasks, "now_seconds": 200.0}
    monkeypatch.setattr("dovetail.cli.tasks.asked", lambda store, request: answer)
    return lambda *options: CliRunner().invoke(app, ["list", *options])


class TestList:
    def test_has_no_metrics_unless_they_are_named(self, listed):
        head, *rows = listed().output.splitlines()
        assert head.split() == ["id", "task", "status", "step", "priority", "start", "end", "why"]
        assert not any("0.875" in row for row in rows)

    @pytest.mark.parametrize(
        ("named", "columns"),
        [
            ("accuracy", ["accuracy"]),
            ("train/loss,accuracy", ["train/loss", "accuracy"]),
            ("all", ["accuracy", "train/loss"]),
        ],
    )
    def test_has_the_metrics_that_are_named(self, listed, named, columns):
        head, new, old = listed("--metrics", named).output.splitlines()
        assert head.split()[7:-1] == columns
        assert "0.875" in old
        assert "0.875" not in new

    def test_refuses_a_metric_that_nobody_reported(self, listed):
        found = listed("--metrics", "acuracy")
        assert found.exit_code == 2
        assert "--metrics must name one of accuracy, train/loss" in found.output
        assert "did you mean 'accuracy'?" in found.output

    def test_sorts_and_writes_all_metrics_for_scripts(self, listed):
        assert [row["task"] for row in json.loads(listed("--json", "--sort", "accuracy").output)] == ["old", "new"]
        rows = list(csv.DictReader(io.StringIO(listed("--csv").output)))
        assert [row["accuracy"] for row in rows] == ["", "0.875"]
