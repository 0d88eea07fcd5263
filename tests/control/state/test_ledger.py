"""What comes to be on record says no secrets, and no more than can be shown."""

import pytest

from dovetail.control.state.ledger import Ledger
from dovetail.store import Store
from dovetail.vocabulary import Plan, Profile, Program, Rejection, Schedule, Stop, Task, TaskId
from dovetail.vocabulary.events import (
    AttemptLost,
    OptionRejected,
    PlanMade,
    StepsDone,
    TaskFailed,
    TaskFinished,
    TrialMeasured,
    Warned,
)
from dovetail.vocabulary.user_text import MOST_CHARACTERS

A = TaskId("a")


def task(name, *, target=None, **parameters):
    stop = Stop(steps=9, metric=target, at_least=0.5 if target else None)
    return Task(name=name, program=Program(reference="a.py:f"), stop=stop, parameters=parameters)


@pytest.fixture
def ledger(monkeypatch):
    monkeypatch.setenv("TEAM_DSN", "swordfish99")
    with Store(None, write=True) as store:
        made = Ledger(store, now=lambda: 1.0)
        made.hide([task("a", pwd="hunter22"), task("b", target="loss accuracy", secret="accuracy")])
        yield made


def written(ledger):
    return repr([event for _, event in ledger.store.events()]) + repr(ledger.store.points(A))


def test_no_event_says_a_secret_in_any_field(ledger):
    said = "hunter22 swordfish99 aHVudGVyMjI= 68756e7465723232 postgres://me:opensesame@db.example.com/x"
    profile = Profile(family="f", kind="cpu", count=1, step_seconds=1.0, peak_bytes=1, metrics=(f"loss {said}",))
    rejection = Rejection(families=("f",), technique="spill", kind="cpu", count=1, reason=said)
    ledger.record(
        [
            ledger.event(TaskFailed, A, reason=said, log=said),
            ledger.event(AttemptLost, A, reason=said, log=said),
            ledger.event(Warned, A, message=said),
            ledger.event(OptionRejected, A, rejection=rejection),
            ledger.event(TaskFinished, A, step=5, reason=said, metrics={f"score {said}": 1.0}),
            ledger.event(StepsDone, A, step=5, points=((f"loss {said}", 5, 0.5),)),
            ledger.event(TrialMeasured, A, profile=profile),
        ]
    )
    found = written(ledger) + repr(ledger[A].metrics) + repr(ledger.rejections()) + repr(ledger.store.profiles())
    for secret in ("hunter22", "swordfish99", "aHVudGVyMjI", "68756e7465723232", "opensesame"):
        assert secret not in found
    assert "loss *** ***" in found


def test_plans_are_kept_without_secrets(ledger):
    plan = Plan(schedule=Schedule(placements=()), explanation=("run-hunter22 is longest",))
    ledger.record_plan(plan, workload="w", because="hunter22 came")
    ((_, _, kept),) = ledger.store.plans()
    assert kept.explanation == ("run-*** is longest",)
    assert [event.because for _, event in ledger.store.events() if isinstance(event, PlanMade)] == ["*** came"]


def test_texts_are_bounded(ledger):
    ledger.record([ledger.event(Warned, A, message="m" * 20_000_000)])
    ((_, event),) = ledger.store.events()
    assert len(event.message) <= MOST_CHARACTERS


def test_what_has_nothing_to_hide_is_kept_as_it_is(ledger):
    event = ledger.event(StepsDone, A, step=5, points=(("train/loss", 5, 0.5),))
    assert ledger._presentable(event) is event


def test_a_metric_that_tasks_are_judged_by_keeps_its_name(ledger):
    ledger.record([ledger.event(StepsDone, A, step=5, points=(("loss accuracy", 5, 0.5), ("an accuracy", 5, 0.5)))])
    assert {point.name for point in ledger.store.points(A)} == {"loss accuracy", "an ***"}
