"""What is asked for before planning, and which tasks cannot end as they were told to."""

import pytest

from dovetail.control.measuring import wanted
from dovetail.control.state.ledger import Ledger
from dovetail.describe import versions
from dovetail.store import Store
from dovetail.vocabulary import Fingerprint, Profile, Program, Stop, Task, read_event, to_json
from dovetail.vocabulary.events import AttemptStarted, TaskFailed, TaskFingerprinted
from tests.control.simulations import cluster, task, workload


@pytest.fixture
def ledger():
    with Store(None, write=True) as store:
        yield Ledger(store, now=lambda: 0.0)


def by_identity(*tasks):
    return {each.identity: each for each in tasks}


def fingerprinted(ledger, each, **fields):
    found = Fingerprint(**{"family": each.program.function, "versions": versions()} | fields)
    ledger.record([ledger.event(TaskFingerprinted, each.identity, fingerprint=found)])


def measured(ledger, each, *, count=1, metrics=("loss",)):
    profile = Profile(
        family=each.program.function, kind="sim", count=count, step_seconds=1.0, peak_bytes=0, metrics=metrics
    )
    ledger.record([read_event("measured", task=each.identity, at_seconds=0.0, data=to_json(profile))])


def members(orders):
    return sorted(member.task.name for order in orders for member in order["members"])


def test_every_task_is_built_once_spread_over_the_devices(ledger):
    tasks = [task(f"t{n}") for n in range(5)]
    orders = wanted.fingerprints(by_identity(*tasks), ledger, cluster(2))
    assert members(orders) == [f"t{n}" for n in range(5)]
    assert [order["devices"] for order in orders] == [("n0:0",), ("n0:1",)]


def test_what_is_known_or_over_is_not_built_again(ledger):
    known, over, unknown = task("known"), task("over"), task("unknown")
    fingerprinted(ledger, known)
    ledger.record([ledger.event(TaskFailed, over.identity, reason="it broke")])
    assert members(wanted.fingerprints(by_identity(known, over, unknown), ledger, cluster())) == ["unknown"]


def test_what_was_built_under_other_versions_is_built_again(ledger):
    fingerprinted(ledger, task("old"), versions="torch 1.0")
    assert members(wanted.fingerprints(by_identity(task("old")), ledger, cluster())) == ["old"]
    # Once: its worker may have other versions than the controller for good.
    assert wanted.fingerprints(by_identity(task("old")), ledger, cluster(), seen={task("old").identity}) == []


def test_one_trial_a_family_and_count(ledger):
    tasks = [task("a"), task("b"), task("c", family="g")]
    for each in tasks:
        fingerprinted(ledger, each)
    measured(ledger, tasks[0], count=1)
    missing = wanted.missing_trials(by_identity(*tasks), ledger, cluster(2))
    assert [(trial.family, trial.technique, trial.count) for trial in missing] == [
        ("f", "resident", 2),
        ("g", "resident", 1),
        ("g", "resident", 2),
    ]
    orders = wanted.trial_orders(missing, by_identity(*tasks), ledger, cluster(2))
    assert [(order["family"], len(order["devices"])) for order in orders] == [("f", 2), ("g", 1), ("g", 2)]


def test_a_trial_is_made_with_a_task_that_has_not_failed(ledger):
    tasks = [task("a"), task("b")]
    for each in tasks:
        fingerprinted(ledger, each)
    ledger.record([ledger.event(TaskFailed, tasks[0].identity, reason="it broke")])
    missing = wanted.missing_trials(by_identity(*tasks), ledger, cluster(2))
    assert set(members(wanted.trial_orders(missing, by_identity(*tasks), ledger, cluster(2)))) == {"b"}


def test_a_trial_is_made_with_a_task_that_waits_where_another_runs(ledger):
    tasks = [task("a"), task("b")]
    for each in tasks:
        fingerprinted(ledger, each)
    where = {"placement": "p", "devices": ("n0:0",), "step": 0, "until": 9, "predicted_seconds": 1.0}
    ledger.record([ledger.event(AttemptStarted, tasks[0].identity, attempt=1, **where)])
    missing = wanted.missing_trials(by_identity(*tasks), ledger, cluster(2))
    assert set(members(wanted.trial_orders(missing, by_identity(*tasks), ledger, cluster(2)))) == {"b"}


def stopping(**rule):
    return Task(name="a", program=Program(reference="a.py:f"), stop=Stop(**rule))


def test_epochs_without_a_length_are_impossible(ledger):
    each = stopping(epochs=3)
    fingerprinted(ledger, each)
    (reason,) = wanted.impossible(workload(each), ledger).values()
    assert reason == (
        "stopping by epochs must go with batches that have a length; these have none. "
        "Give them __len__, or stop by steps."
    )


def test_a_target_that_evaluation_never_reports_is_impossible(ledger):
    each = stopping(steps=3, metric="accuracy", at_least=0.9)
    fingerprinted(ledger, each)
    assert wanted.impossible(workload(each), ledger) == {}  # nothing was measured yet
    measured(ledger, each, metrics=("loss", "weight"))
    (reason,) = wanted.impossible(workload(each), ledger).values()
    assert "must report the metric 'accuracy'" in reason
    assert "['loss', 'weight']" in reason
    assert "Add it to what evaluate gives, or change the target." in reason


def test_a_target_that_is_reported_is_possible(ledger):
    each = stopping(steps=3, metric="accuracy", at_least=0.9)
    fingerprinted(ledger, each)
    measured(ledger, each, metrics=("accuracy", "loss"))
    assert wanted.impossible(workload(each), ledger) == {}
