"""Why tasks of a store failed, diverged, were halved or ran slower, and what the best of them have in common."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.store import Point, Store
from dovetail.verbs.why import why_store
from dovetail.vocabulary import DovetailError, Option, Program, Stop, Task, Workload
from dovetail.vocabulary.events import AttemptLost, AttemptStarted, TaskFailed, TaskFinished, TaskHalved

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
        return {each.question: each.lines()[0].partition(": ")[0] for each in why_store(store, **asked)}


def test_each_outcome_is_explained_by_what_is_behind_it(home):
    found = first_lines(home)
    assert found["why did tasks diverge?"] == "rate ≥ 0.03 and norm = none"
    assert found["why did tasks fail: out of memory?"] == "rate = 0.001 and width = 256"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """How a task's attempts ran, and why the last of them failed, if it did."""

    reason: str = ""
    seconds: float = 9.0
    technique: str = "resident"
    node: str = "n0"
    attempts: int = 1
    neighbours: int = 0

    def events(self, task):
        families = tuple(f"f{each}" for each in range(1 + self.neighbours))
        steps = (1.0,) * len(families)
        option = Option(families=families, technique=self.technique, kind="cpu", count=1, step_seconds=steps)
        for attempt in range(1, self.attempts + 1):
            at = {"task": task.identity, "attempt": attempt}
            run = {"placement": f"{task.name} {attempt}", "devices": (f"{self.node}:0",), "step": 0, "until": 9}
            yield AttemptStarted(**at, at_seconds=0.0, **run, predicted_seconds=9.0, option=option)
            if attempt < self.attempts:
                yield AttemptLost(**at, at_seconds=1.0, reason="its worker ended")
            elif self.reason:
                yield TaskFailed(**at, at_seconds=1.0, reason=self.reason, phase="building", cause="program")
            else:
                yield TaskFinished(**at, at_seconds=self.seconds, step=9)


def ended(tasks, home, ran):
    """A store of these tasks, which ran as `ran` says of each."""
    with Store(home, write=True) as store:
        events = [event for task in tasks for event in ran(task).events(task)]
        store.add(tasks=[("w", task) for task in tasks], events=events)


def made(**columns):
    names = list(columns)
    return [
        Task(
            name=f"t{number}",
            program=Program(reference="s.py:f"),
            parameters=dict(zip(names, row, strict=True)),
            stop=Stop(steps=9),
        )
        for number, row in enumerate(zip(*columns.values(), strict=True))
    ]


def raised(error):
    return f"task 't': its program must build a Training; it raised {error}: 'x'. (building, s.py:3 in f)"


def test_a_question_that_nothing_can_answer_leaves_the_others(tmp_path):
    tasks = made(w=[number % 2 for number in range(40)], copy=[f"c{number // 2}" for number in range(40)])

    def ran(task):
        reason = raised("KeyError") if task.parameters["w"] == 0 else ""
        return Ran(reason=reason, seconds=30.0 if task.parameters["copy"][-1] in "13579" else 9.0)

    ended(tasks, tmp_path, ran)
    with Store(tmp_path) as store:
        failed, slower = why_store(store)
    assert failed.question == "why did tasks fail: KeyError in building?"
    assert failed.lines()[0].startswith("w = 0: 20 of 20 such failures, nowhere else")
    assert slower.lines() == [
        "there must be an attribute to explain by; 'w' is left out: it has the same value in each row; "
        "'copy' is left out: it has another value in each row."
    ]


@pytest.mark.parametrize("count", [5, 8, 20])
def test_a_measure_with_another_value_in_each_task_explains_by_its_ranges(tmp_path, count):
    tasks = made(rate=[2.0**number for number in range(count)])
    ended(
        tasks,
        tmp_path,
        lambda task: Ran(reason=raised("ValueError") if task.parameters["rate"] >= 2 ** (count // 2) else ""),
    )
    with Store(tmp_path) as store:
        (found,) = why_store(store)
    # In 20 tasks, two to a bin, 10 and 10 are beyond chance over all ranges; of 8 tasks nothing can be.
    assert found.lines()[0].startswith("rate ≥ 512: 10 of 10" if count == 20 else "nothing that they have in common")
    assert not found.found.notes


def test_what_could_explain_nothing_is_said(tmp_path):
    tasks = made(w=[number % 2 for number in range(40)], name=[f"n{number}" for number in range(40)])
    ended(tasks, tmp_path, lambda task: Ran(reason=raised("KeyError") if task.parameters["w"] == 0 else ""))
    with Store(tmp_path) as store:
        (found,) = why_store(store)
    assert found.found.notes == ("'name' is left out: it has another value in each row",)


def test_failures_are_told_apart_by_what_was_raised(tmp_path):
    tasks = made(w=[number % 4 for number in range(80)], seed=[number // 4 for number in range(80)])
    errors = {1: raised("KeyError"), 2: raised("ValueError")}
    ended(tasks, tmp_path, lambda task: Ran(reason=errors.get(task.parameters["w"], "")))
    found = first_lines(tmp_path)
    assert found["why did tasks fail: KeyError in building?"] == "w = 1"
    assert found["why did tasks fail: ValueError in building?"] == "w = 2"
    assert "why did tasks fail?" in found


@pytest.mark.parametrize(
    ("attribute", "there", "elsewhere", "words"),
    [
        ("technique", "spill", "resident", "technique = spill"),
        ("node", "n1", "n0", "node = n1"),
        ("attempts", 3, 1, "attempts = 3"),
        ("neighbours", 2, 0, "neighbours = 2"),
        ("program", "other.py:g", "s.py:f", "program = other.py:g"),
    ],
)
def test_how_tasks_ran_explains_as_parameters_do(tmp_path, attribute, there, elsewhere, words):
    tasks = made(width=[number // 2 % 3 for number in range(60)], seed=list(range(60)))
    if attribute == "program":
        programs = [Program(reference=(there, elsewhere)[number % 2]) for number in range(60)]
        tasks = [dataclasses.replace(task, program=each) for task, each in zip(tasks, programs, strict=True)]

    def ran(task):
        is_there = task.parameters["seed"] % 2 == 0
        how = {} if attribute == "program" else {attribute: there if is_there else elsewhere}
        return Ran(reason=raised("KeyError") if is_there else "", **how)

    ended(tasks, tmp_path, ran)
    assert first_lines(tmp_path) == {"why did tasks fail: KeyError in building?": words}


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
            (("rows.csv", "--outliers", "x >"), "a condition must be a comparison of columns, such as 'power_drain"),
            (("rows.csv", "--outliers", "x > 9"), "of 3 rows none is one. Give a wider condition."),
            (("rows.csv", "--outliers", "x > 0"), "beside others to compare with; all 3 are. Give a narrower"),
            (("empty.csv", "--outliers", "x > 0"), "a table to explain must have rows; this one has none."),
            (("twice.csv", "--outliers", "x > 0"), "the columns of a table must have different names; 'a' is there 2 "),
            (("--outliers", "x > 1"), "--outliers must come with a file of rows; of the store's tasks, "),
            (("--ratio", "odds"), "ratio must be one of risk, global, prevalence, mean_shift, sum_shift, got 'odds'."),
            (("--least-support", "0"), "least_support must be above 0 and at most 1, got 0.0."),
            (("--order", "0"), "order must be a whole number of at least 1, or None for any, got 0."),
            (("--best", "5"), "--best must come with the --metric that it goes by, such as --metric accuracy."),
            (("--where", "x > 1", "--metric", "accuracy", "--best", "5"), "one question must be asked at a time, g"),
            (("--between", "a", "b", "--where", "x > 1"), "got --between and --where. Leave out all but one."),
            (("--ranges", "x"), "--ranges must come with a file of rows; of tasks, all parameters of numbers are"),
            (("--data-parameter", "x"), "--data-parameter must come with two files of rows to compare, and without --"),
            (("rows.csv", "--outliers", "x > 1", "--workload", "w"), "--workload names tasks of the store, or what to"),
            (("--show", "long"), "show must be one of short, growing, minimal, got 'long'."),
        ],
    )  # fmt: skip
    def test_refuses_in_one_line(self, words, said, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        files = {"rows.csv": "a,x\n1,1\n2,2\n2,3\n", "empty.csv": "a,x\n", "twice.csv": "a,a,x\n1,1,1\n"}
        for name, text in files.items():
            Path(name).write_text(text)
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
            (("--where", "rate >"), "a condition must be a comparison of columns, such as 'power_drain > 0.9', g"),
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
