"""What callbacks of `dt.run` are told, and what their errors do."""

import pytest

import dovetail as dt
from dovetail.control.state.ledger import Ledger
from dovetail.store import Store
from dovetail.verbs.run_callbacks import RunCallbacks
from dovetail.vocabulary.events import StepsDone, TaskFinished
from tests.control.simulations import cluster, task
from tests.verbs.test_run_workload import engine, sweep


class Ground:
    """A controller as far as callbacks know one, over a store of one task."""

    def __init__(self, tmp_path):
        self.task = task("one", steps=9)
        self.store = Store(tmp_path, write=True)
        self.ledger = Ledger(self.store, now=lambda: 0.0)
        self.tasks, self.told, self.posted = {self.task.identity: self.task}, [], []
        self.listen = self.ledger.listeners.append

    def post(self, command, **arguments):
        self.posted.append((command, arguments["reason"]))

    def hear(self, home, **callbacks):
        ledger = self.ledger
        self.progress = type("Seen", (), {"items": lambda self: [], "__getitem__": lambda self, key: ledger[key]})()
        return RunCallbacks(self, home=home, **callbacks)

    def report(self, *points, kind=StepsDone, **fields):
        more = {"points": points} if kind is StepsDone else {}
        self.ledger.record([self.ledger.event(kind, self.task.identity, **more, **fields)])


def test_each_value_and_each_evaluation_is_told_once(tmp_path):
    ground, metrics, evaluations = Ground(tmp_path), [], []
    ground.hear(
        tmp_path,
        on_metric=lambda task, name, step, value: metrics.append((task.name, name, step, value)),
        on_evaluate=lambda task, step, found: evaluations.append((task.name, step, dict(found))),
    )
    first = (["train/loss", 1, 0.5], ["loss", 2, 0.4], ["accuracy", 2, 0.9])
    ground.report(*first, step=2)
    ground.report(*first, ["loss", 4, 0.3], step=4)  # carried in a checkpoint, and reported again
    assert metrics == [("one", *point) for point in (*map(tuple, first), ("loss", 4, 0.3))]
    assert evaluations == [("one", 2, {"loss": 0.4, "accuracy": 0.9}), ("one", 4, {"loss": 0.3})]


def test_an_end_is_told_with_what_came_of_the_task(tmp_path):
    ground, ends = Ground(tmp_path), []
    ground.hear(tmp_path, on_end=ends.append)
    ground.report(["accuracy", 9, 0.9], step=9)
    ground.report(kind=TaskFinished, step=9)
    ground.report(step=9)
    assert [(end.name, end.status, end.step, dict(end.metrics)) for end in ends] == [
        ("one", "finished", 9, {"accuracy": 0.9})
    ]


def test_an_error_asks_for_a_stop_and_is_raised_at_the_end(tmp_path):
    ground = Ground(tmp_path)
    heard = ground.hear(tmp_path, on_metric=lambda task, name, step, value: 1 / value)
    ground.report(["loss", 1, 0.0], step=1)
    ground.report(["loss", 2, 0.0], step=2)
    assert ground.posted == [("stop", "a callback raised ZeroDivisionError: float division by zero")]
    with pytest.raises(ZeroDivisionError):
        heard.check()


def test_dt_run_tells_of_each_task_that_ends_in_it(tmp_path):
    ends = []
    wishes = {"store": tmp_path, "cluster": cluster(1), "engine": engine(), "progress": False}
    dt.run(sweep(a=5, b=9), on_end=lambda end: ends.append((end.name, end.status)), **wishes)
    assert sorted(ends) == [("a", "finished"), ("b", "finished")]
    dt.run(sweep(a=5, b=9), on_end=ends.append, **{**wishes, "engine": engine()})
    assert len(ends) == 2


def test_dt_run_raises_what_a_callback_raised_and_the_next_run_goes_on(tmp_path):
    wishes = {"store": tmp_path, "cluster": cluster(1), "progress": False}
    with pytest.raises(LookupError, match="no room"):
        dt.run(sweep(a=5, b=900), on_end=_refuse, engine=engine(), **wishes)
    found = dt.run(sweep(a=5, b=900), engine=engine(), **wishes)
    assert {end.status for end in found.tasks} == {"finished"}


def _refuse(end):
    raise LookupError("no room in the log")
