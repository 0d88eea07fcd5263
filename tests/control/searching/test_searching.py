"""Whole searches on the simulated engine: every trial once, whatever happens, by every way of asking."""

import collections
import contextlib
import json

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

import dovetail as dt
from dovetail.control.searching.study_file import study_path
from dovetail.store import Store
from dovetail.vocabulary import DovetailError, InvalidWorkload, StoreError
from tests.control.simulations import Faults, RiggedEngine, cluster, events_of, world

SPACE = {"count": dt.integers(1, 1000)}


def score(name: str, step: int) -> float:
    """How good a task is, by the parameter in its name."""
    return float(name.rpartition("=")[2]) * step


def search(**changes: object) -> dt.Search:
    given = {"metric": "score", "goal": "max", "steps": 90, "count": 8, "name": "simulated"} | changes
    return dt.Search("dovetail.vocabulary.units:show_bytes", given.pop("space", SPACE), **given)


def make(faults: Faults | None = None):
    """What makes an engine whose clock goes on where that of the run before ended."""

    def engine(on, *, home, silence_seconds):
        found = RiggedEngine(world(), faults or Faults(score=score))
        try:
            with Store(home) as store:
                found.go_on_after(store)
        except StoreError:  # none yet
            pass
        return found

    return engine


def carry_out(found: dt.Search, store, *, faults: Faults | None = None, **how):
    return dt.run(found, store=store, cluster=cluster(), engine=make(faults), planner="list", progress=False, **how)


def check_once(store, count: int) -> None:
    """Every trial is in the study once, has a task of its own, was submitted once and told once."""
    study = dt.open_result(store, workload="simulated").study()
    assert [trial.number for trial in study.trials] == list(range(count))
    assert all(trial.state.is_finished() for trial in study.trials)
    tasks = {trial.user_attrs["task"] for trial in study.trials}
    assert len(tasks) == count
    with Store(store) as opened:
        assert {task.name for _, task in opened.tasks(workload="simulated")} == tasks
        submitted = collections.Counter(event.task for event in events_of(opened, "submitted"))
    assert set(submitted.values()) == {1}
    lines = [json.loads(line) for line in study_path(store, "simulated").read_text().splitlines()]
    told = collections.Counter(
        each["trial_id"] for each in lines if each["op_code"] == 6 and each["state"] in (1, 2, 3)
    )
    assert sorted(told.values()) == [1] * count
    assert sum(each["op_code"] == 4 for each in lines) == count


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sampler": "random", "at_once": 3},
        {"sampler": optuna.samplers.NSGAIISampler()},
        {"space": lambda trial: {"count": trial.suggest_int("count", 1, 1000)}},
    ],
    ids=["tpe", "random", "nsga", "function"],
)
def test_each_trial_is_asked_for_and_told_once(tmp_path, changes):
    found = search(**changes)
    result = carry_out(found, tmp_path)
    check_once(tmp_path, found.count)
    study = result.study()
    for trial in study.trials:
        assert trial.value == score(trial.user_attrs["task"], 90)
        assert result[trial.user_attrs["task"]].task.parameters["count"] == trial.params["count"]
    assert result.is_search
    assert study.best_trial.user_attrs["task"] == max(result.tasks, key=lambda task: score(task.name, 90)).name
    again = carry_out(found, tmp_path)
    assert len(again.tasks) == found.count
    carry_out(search(**changes | {"count": found.count + 2}), tmp_path)
    check_once(tmp_path, found.count + 2)


class Killed(BaseException):
    """What stands for a kill: nobody catches it."""


class Guillotine:
    """Raises `Killed` in the place of the n-th write, be it the store's or the study's, and of all that follow."""

    def __init__(self, monkeypatch) -> None:
        self.left, self.count = 1 << 30, 0
        for owner, name in ((Store, "add"), (Store, "add_plan"), (JournalFileBackend, "append_logs")):
            monkeypatch.setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, write):
        def guarded(*arguments, **named):
            if self.left <= 0:
                raise Killed
            self.left, self.count = self.left - 1, self.count + 1
            return write(*arguments, **named)

        return guarded


@pytest.mark.parametrize(
    ("count", "rule"), [(3, {}), pytest.param(2, {"pruner": "asha"}, marks=pytest.mark.slow)], ids=["plain", "asha"]
)
def test_killed_before_any_write_it_goes_on_without_asking_or_telling_twice(tmp_path, monkeypatch, count, rule):
    guillotine, found = Guillotine(monkeypatch), search(count=count, **rule)
    carry_out(found, tmp_path / "whole")
    writes = guillotine.count
    assert writes > 20
    for moment in range(writes):
        home, guillotine.left = tmp_path / str(moment), moment
        with contextlib.suppress(Killed):  # other draws may have ended with fewer writes
            carry_out(found, home)
        assert guillotine.left == 0 or moment > writes // 2
        guillotine.left = 1 << 30
        carry_out(found, home)
        check_once(home, count)


def test_tasks_are_asked_for_as_devices_fall_free(tmp_path):
    most = 0

    def watch(controller):
        nonlocal most
        most = max(most, controller.left)

    carry_out(search(), tmp_path / "own", observe=watch)
    assert most == 2  # as many as there are devices
    carry_out(search(at_once=5, count=12), tmp_path / "five", observe=watch)
    assert most == 5
    carry_out(search(sampler="random"), tmp_path / "random", observe=watch)
    assert most == 5  # no gangs are measured here: a device has one task


@pytest.mark.parametrize("asynchronous", [False, True])
def test_halving_ends_the_worse_and_they_are_pruned_in_the_study(tmp_path, asynchronous):
    rule = dt.Halving(metric="score", first_steps=10, asynchronous=asynchronous)
    result = carry_out(search(pruner=rule, count=9), tmp_path)
    check_once(tmp_path, 9)
    states = collections.Counter(trial.state.name for trial in result.study().trials)
    statuses = collections.Counter(task.status for task in result.tasks)
    assert states == {"PRUNED": statuses["halved"], "COMPLETE": statuses["finished"]}
    most = max(score(task.name, 90) for task in result.tasks)  # a sampler may ask for the same value twice
    assert "finished" in {task.status for task in result.tasks if score(task.name, 90) == most}
    assert statuses["finished"] == 1 if not asynchronous else statuses["halved"] > 2


def test_a_trial_that_fails_has_no_value_and_the_search_goes_on(tmp_path):
    def outcome(name, attempt, until):
        return "the loss must be finite" if "#1 " in name or "#4 " in name else None

    result = carry_out(search(), tmp_path, faults=Faults(score=score, outcome=outcome))
    check_once(tmp_path, 8)
    failed = [trial for trial in result.study().trials if trial.state.name == "FAIL"]
    assert [trial.number for trial in failed] == [1, 4]
    assert failed[0].user_attrs["reason"] == "the loss must be finite"


def test_where_all_fail_that_is_an_error(tmp_path):
    with pytest.raises(dt.TrainingError, match="8 of 8 failed"):
        carry_out(search(), tmp_path, faults=Faults(outcome=lambda *_: "it is no good"))


def test_a_target_that_is_met_ends_the_search(tmp_path):
    found = search(space={"count": dt.integers(1, 9)}, at_least=1.0, count=50)
    result = carry_out(found, tmp_path, faults=Faults(score=lambda name, step: float("#3 " in name)))
    assert len(result.tasks) < 10
    assert result.study().best_trial.number == 3
    assert {task.status for task in result.tasks} <= {"finished", "pruned"}


class Broken(optuna.samplers.RandomSampler):
    """A sampler that raises when it is asked for the n-th time."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good

    def sample_independent(self, study, trial, name, distribution):
        self.good -= 1
        if self.good < 0:
            raise ZeroDivisionError("out of ideas")
        return super().sample_independent(study, trial, name, distribution)


def test_a_sampler_that_raises_ends_the_search_with_its_reason_and_it_goes_on_with_another(tmp_path):
    with pytest.raises(DovetailError) as raised:
        carry_out(search(sampler=Broken(3), at_once=2), tmp_path)
    said = "the sampler Broken asked for trial 3 must not raise; it raised ZeroDivisionError: out of ideas."
    assert str(raised.value).startswith(said)
    carry_out(search(), tmp_path)
    check_once(tmp_path, 8)


def test_a_metric_that_nobody_reports_is_named_with_those_that_are(tmp_path):
    with pytest.raises(InvalidWorkload, match=r"metric 'scor' that the search is for; it reports \['score'\]"):
        carry_out(search(metric="scor"), tmp_path)
    carry_out(search(), tmp_path)  # mended, it goes on
    check_once(tmp_path, 8)


def test_a_sampler_that_has_tried_all_ends_the_search(tmp_path):
    grid = optuna.samplers.GridSampler({"count": [1, 2, 3]})
    result = carry_out(search(sampler=grid, at_once=1), tmp_path)
    assert sorted(task.task.parameters["count"] for task in result.tasks) == [1, 2, 3]


def test_fresh_begins_anew(tmp_path):
    carry_out(search(), tmp_path)
    carry_out(search(count=3), tmp_path, fresh=True)
    assert len(dt.open_result(tmp_path, workload="simulated").tasks) == 3
    assert len(dt.open_result(tmp_path, workload="simulated").study().trials) == 3


def test_trials_that_were_enqueued_are_asked_for_first(tmp_path):
    carry_out(search(count=1), tmp_path)
    dt.open_result(tmp_path, workload="simulated").study().enqueue_trial({"count": 777})
    result = carry_out(search(count=3), tmp_path)
    assert result.study().trials[1].params == {"count": 777}
    check_once(tmp_path, 3)


def test_how_far_it_is_and_the_best_so_far_are_shown(tmp_path):
    said = []
    carry_out(search(), tmp_path, observe=lambda controller: said.append(controller.source.summary()))
    assert said[0] == "0 of 8 trials"
    assert said[-1].startswith("8 of 8 trials, best score ")
    assert "show_bytes #" in said[-1]


def test_a_plan_takes_no_search():
    with pytest.raises(InvalidWorkload, match=r"Only dt.run and 'dovetail run' take a search"):
        dt.plan(search(), engine=make())
