"""Tables of tasks: which columns they have, and in which order their rows stand."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from dovetail.cli import show
from dovetail.cli.app import app
from dovetail.store import Point, Store
from dovetail.vocabulary import FamilyKey, Option, Placement, Plan, Program, Rejection, Schedule, Stop, Task, Workload
from dovetail.vocabulary.events import TaskFailed, TaskFinished, Warned


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
    monkeypatch.setattr("dovetail.cli.tasks.ask_controller", lambda store, request: answer)
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


STEER = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The output of a command on a store with one failed task, whose every text is this, and whose password is too."""
    monkeypatch.setenv("COLUMNS", "400")

    def shown(command: list[str], text: str, **parameters: object) -> str:
        task = Task(
            name=f"a {text}"[:200], program=Program(reference="a.py:f"), stop=Stop(steps=9), parameters=parameters
        )
        at = {"task": task.identity, "attempt": 1}
        failed = TaskFailed(**at, at_seconds=2.0, reason=text, log=f"Traceback: {text}", phase="training")
        warned = Warned(task=task.identity, at_seconds=1.0, message=text)
        points = [Point(task=task.identity, name=f"loss {text}"[:200], step=1, value=0.5, at_seconds=1.0)]
        with Store(tmp_path, write=True) as store:
            store.add(tasks=[("w", task)], events=[warned, failed], points=points)
        found = CliRunner().invoke(app, [*command, "--store", str(tmp_path)])
        assert found.exit_code == 0, found.output
        return found.output

    return shown


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["show", "--csv"], ["logs", "a*"]])
class TestTextsOfOthers:
    def test_are_shown_without_secrets(self, kept, command, monkeypatch):
        monkeypatch.setenv("TEAM_DSN", "opensesame")
        found = kept(command, "hunter22 aHVudGVyMjI= opensesame ghp_0123456789abcdef", pwd="hunter22")
        assert "***" in found
        for secret in ("hunter22", "aHVudGVyMjI", "opensesame", "ghp_0123456789abcdef"):
            assert secret not in found

    def test_are_bounded(self, kept, command):
        found = kept(command, "first " + "x" * 3_000_000 + " last")
        assert len(found) < 50_000
        assert "bytes left out" in found


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["logs", "a*"]])
def test_texts_of_others_steer_no_terminal(kept, command):
    found = kept(command, STEER)
    assert "\x1b" not in found
    assert "\x07" not in found
    assert "owned" in found


def test_errors_steer_no_terminal(tmp_path):
    found = CliRunner().invoke(app, ["show", "--store", str(tmp_path / STEER)])
    assert found.exit_code == 2
    assert "\x1b" not in found.output
    assert r"\x1b]0;owned" in found.output


@pytest.mark.parametrize(("share", "said"), [(0.34, "steps waited for data: a 34% of their time"), (0.05, "")])
def test_what_tasks_waited_for_data_is_shown_where_it_matters(tmp_path, monkeypatch, share, said):
    monkeypatch.setenv("COLUMNS", "200")
    task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9))
    done = TaskFinished(task=task.identity, attempt=1, at_seconds=2.0, step=9, data_share=share)
    with Store(tmp_path, write=True) as store:
        store.add(tasks=[("w", task)], events=[done])
    found = CliRunner().invoke(app, ["show", "--store", str(tmp_path)]).output
    assert said in found
    assert ("waited for data" in found) == bool(said)
    rows = json.loads(CliRunner().invoke(app, ["show", "--json", "--store", str(tmp_path)]).output)["tasks"]
    assert rows[0]["data_share"] == share


def test_a_listed_task_shows_no_secret(monkeypatch):
    row = {**_row("run-hunter22"), "parameters": {"jwt": "hunter22"}, "why": "hunter22"}
    monkeypatch.setattr(
        "dovetail.cli.tasks.ask_controller", lambda store, request: {"tasks": [row], "now_seconds": 200.0}
    )
    for options in ([], ["--json"], ["--csv"]):
        found = CliRunner().invoke(app, ["list", *options]).output
        assert "***" in found
        assert "hunter22" not in found


class TestPlan:
    def test_what_does_not_fit_is_said_once_with_the_tasks_it_is_said_of(self, capsys):
        tasks = tuple(
            Task(name=f"width={n}", program=Program(reference="a.py:f"), parameters={"n": n}, stop=Stop(steps=5))
            for n in range(5)
        )
        options = [
            Option(families=(f"f{n}",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
            for n in range(5)
        ]
        options[1] = options[1].named([FamilyKey(family="f1", threads=1)])  # one that goes on as it began
        placed = tuple(
            Placement(
                tasks=(task.identity,),
                steps=(5,),
                option=option,
                devices=("n0:0",),
                start_seconds=5.0 * number,
                duration_seconds=5.0,
            )
            for number, (task, option) in enumerate(zip(tasks, options, strict=True))
        )
        fields = {"technique": "shard", "kind": "cpu", "count": 2, "reason": "its rows cannot be divided."}
        rejections = tuple(Rejection(families=(f"f{n}",), **fields) for n in (0, 1, 2, 3, 4))
        other = Rejection(families=("elsewhere",), **{**fields, "technique": "spill"})
        plan = Plan(
            workload=Workload(name="w", tasks=tasks),
            schedule=Schedule(placements=placed),
            rejections=(*rejections, other),
        )
        show.plan(plan)
        said = " ".join(capsys.readouterr().out.split())
        assert said.count("its rows cannot be divided") == 2
        assert "rejected for width=0, width=1, width=2 and 2 more: shard on 2 × cpu: its rows" in said
        assert "rejected: spill on 2 × cpu: its rows" in said
