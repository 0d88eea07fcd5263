"""Why tasks of a store failed, diverged, were halved or ran slower, and what the best of them have in common."""

import itertools
import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.store import Point, Store
from dovetail.verbs.why import why_store
from dovetail.vocabulary import DovetailError, Option, Program, Stop, Task, Workload
from dovetail.vocabulary.events import AttemptStarted, TaskFailed, TaskFinished, TaskHalved

NAN = "the loss must be a finite number; it was nan at step 3, the first such step."


def sweep(name="sweep"):
    grid = itertools.product((0.001, 0.003, 0.01, 0.03, 0.1), ("none", "layer"), (64, 128, 256), range(5))
    tasks = [
        Task(
            name=f"{name} {number}",
            program=Program(reference="sweep.py:net"),
            parameters={"rate": rate, "norm": norm, "width": width, "seed": seed},
            stop=Stop(steps=9),
        )
        for number, (rate, norm, width, seed) in enumerate(grid)
    ]
    return Workload(name=name, tasks=tuple(tasks))


def described(workload):
    return [(workload.name, task) for task in workload.tasks]


def events_of(task, number):
    rate, norm, width = (task.parameters[name] for name in ("rate", "norm", "width"))
    kind = "slow" if number % 4 == 0 else "fast"
    option = Option(families=("f",), technique="resident", kind=kind, count=1, step_seconds=(1.0,))
    at = {"task": task.identity, "attempt": 1}
    yield AttemptStarted(
        **at, at_seconds=0.0, placement=str(number), devices=(f"n{number % 2}:0",), step=0, until=9,
        predicted_seconds=9.0, option=option,
    )  # fmt: skip
    end = 20.0 if kind == "slow" else 9.0
    if rate >= 0.03 and norm == "none":
        yield TaskFailed(**at, at_seconds=end, reason=NAN, phase="training", cause="program")
    elif width == 256 and rate == 0.001:
        yield TaskFailed(**at, at_seconds=end, reason="out of memory", phase="training", cause="memory")
    elif width == 64 and norm == "layer":
        yield TaskHalved(**at, at_seconds=end, step=3, metric="loss", value=2.0)
    else:
        yield TaskFinished(**at, at_seconds=end, step=9)


@pytest.fixture
def home(tmp_path):
    workload = sweep()
    with Store(tmp_path, write=True) as store:
        events = [event for number, task in enumerate(workload.tasks) for event in events_of(task, number)]
        points = [
            Point(task=task.identity, name=name, step=9, value=value, at_seconds=9.0)
            for task in workload.tasks
            for name, value in (
                ("accuracy", 0.9 if task.parameters["width"] == 128 else 0.5 + task.parameters["rate"]),
                ("train/loss", 4.0 if task.parameters["norm"] == "layer" else 1.0),
            )
        ]
        store.add(tasks=described(workload), events=events, points=points)
    return tmp_path


def first_lines(home, **asked):
    with Store(home) as store:
        return {each.question: each.lines()[0].partition(":")[0] for each in why_store(store, **asked)}


def test_each_outcome_is_explained_by_what_is_behind_it(home):
    found = first_lines(home)
    assert found["why did tasks diverge?"] == "rate ≥ 0.03 and norm = none"
    assert found["why have tasks failed: out of memory?"] == "rate = 0.001 and width = 256"
    assert found["why were tasks halved early?"] == "norm = layer and width = 64"
    assert found["why were tasks slower than predicted?"] == "kind = slow"
    assert "why did tasks fail?" in found


def test_the_best_and_the_worst_of_a_metric(home):
    assert first_lines(home, metric="accuracy", best="50") == {
        "what do the 50 tasks with the best accuracy have in common?": "width = 128"
    }
    assert [*first_lines(home, metric="accuracy", worst="10%").values()] == ["rate = 0.001"]


def test_a_condition_may_name_metrics_and_parameters(home):
    assert [*first_lines(home, where="train/loss>3").values()] == ["norm = layer"]
    assert [*first_lines(home, where="train/loss > 3 and width == 64").values()] == ["norm = layer and width = 64"]


def test_between_two_workloads(home):
    other = sweep("second")
    with Store(home, write=True) as store:
        tasks = [task for task in other.tasks if task.parameters["rate"] > 0.01]
        events = [event for number, task in enumerate(tasks) for event in events_of(task, number)]
        store.add(tasks=[("second", task) for task in tasks], events=events)
    assert [*first_lines(home, between=("sweep", "second")).values()] == ["rate ≥ 0.03"]
    with (
        Store(home) as store,
        pytest.raises(DovetailError, match="--between must be two workloads of the store, which"),
    ):
        why_store(store, between=("sweep", "third"))


def test_secrets_of_parameters_are_not_shown(tmp_path):
    tasks = [
        Task(
            name=f"t{n}",
            program=Program(reference="s.py:f"),
            parameters={"api_key": f"sk-secret-{n % 2}-aaaaaaaa"},
            stop=Stop(steps=1),
        )
        for n in range(40)
    ]
    with Store(tmp_path, write=True) as store:
        ends = [
            TaskFailed(task=t.identity, attempt=1, at_seconds=1.0, reason="x", phase="training")
            if n % 2
            else TaskFinished(task=t.identity, attempt=1, at_seconds=1.0, step=1)
            for n, t in enumerate(tasks)
        ]
        store.add(tasks=[("w", task) for task in tasks], events=ends)
    found = CliRunner().invoke(app, ["why", "--store", str(tmp_path), "--json"]).output
    assert "sk-secret" not in found


class TestCommand:
    def run(self, *words):
        return CliRunner().invoke(app, ["why", *map(str, words)])

    def test_answers_in_words(self, home):
        lines = self.run("--store", home).output.splitlines()
        at = lines.index("Why did tasks diverge?")
        assert lines[at + 1].startswith(
            "  rate ≥ 0.03 and norm = none: 30 of 30 that diverged, nowhere else (at least "
        )
        assert lines[at + 1].endswith("× as likely), 20% of tasks")

    def test_answers_in_json(self, home):
        (found,) = json.loads(self.run("--store", home, "--metric", "accuracy", "--best", "50", "--json").output)
        assert found["outliers"] == 50
        assert found["found"][0]["values"] == {"width": "= 128"}
        assert 0 < found["found"][0]["p_value"] < 1e-9

    def test_of_a_file(self, tmp_path):
        path = tmp_path / "events.csv"
        rows = [f"{0.95 if n % 4 == 1 else 0.1},d{n % 4},f{n % 3}" for n in range(400)]
        path.write_text("\n".join(["power_drain,device,firmware", *rows]))
        found = self.run(path, "--outliers", "power_drain > 0.9", "--on", "device,firmware")
        assert found.exit_code == 0
        assert found.output.splitlines()[1].startswith("  device = d1: 100 of 100 outliers, nowhere else")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("missing.csv", "--outliers", "x > 1"), "a table must be a file; there is none at missing.csv."),
            (("x.csv",), "a file of rows must come with --outliers 'power_drain > 0.9', which says what to explain."),
            (("x.csv", "--outliers", "x>1", "--best", "5"), "--best asks about the store's tasks"),
            (("--outliers", "x > 1"), "--outliers must come with a file of rows; of the store's tasks, "),
            (("--ratio", "odds"), "ratio must be one of risk, global, prevalence, got 'odds'."),
            (("--least-support", "0"), "least_support must be above 0 and at most 1, got 0.0."),
            (("--order", "0"), "order must be a whole number of at least 1, or None for any, got 0."),
            (("--show", "long"), "show must be one of short, growing, minimal, got 'long'."),
        ],
    )  # fmt: skip
    def test_refuses_in_one_line(self, words, said):
        found = self.run(*words)
        assert found.exit_code == 2
        assert said in found.output
        assert len(found.output.splitlines()) == 1

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--metric", "accurcy", "--best", "5"), "--metric must be one of accuracy, train/loss, got 'accurcy'."),
            (("--metric", "accuracy"), "--metric must come with one of --worst 10% and --best 5."),
            (("--metric", "accuracy", "--best", "many"), "--best must be a part, such as 10%, or a number, such as 5"),
            (("--where", "rate >"), "a condition must be a comparison of columns, such as 'power_drain > 0.9', got"),
            (("--where", "ratee > 1"), "names 'ratee'; did you mean 'rate'?"),
            (("--where", "rate > 9"), "outliers must be some of the rows; of 150 rows none is one."),
            (("--where", "rate > 0"), "all 150 are. Give a narrower condition."),
        ],
    )
    def test_refuses_what_the_store_does_not_have(self, home, words, said):
        found = self.run("--store", home, *words)
        assert found.exit_code == 2
        assert said in found.output

    def test_nothing_to_explain(self, tmp_path):
        with Store(tmp_path, write=True) as store:
            store.add(tasks=described(sweep()))
        assert self.run("--store", tmp_path).output.startswith("Nothing to explain: no two tasks failed, diverged,")
