"""What all views share: every task in a row, and what is said of the whole."""

import json

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import FrozenDict, read_event
from dovetail.vocabulary.events import DevicesReleased
from dovetail.web.plain_data import dump
from dovetail.web.reading import read_whole
from dovetail.web.snapshot import snapshot
from tests.web.synthetic import START, fill_anew, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def shown(store: Store, *, now: float = START + 700, workload: str | None = None):
    return json.loads(dump(snapshot(read_whole(store, workload=workload), now=now)))


def test_the_sweep_is_shown(store: Store):
    tasks = fill_sweep(store)
    found = shown(store)
    assert found["workloads"] == ["sweep"]
    statuses = [row["status"] for row in found["tasks"]]
    assert [statuses.count(each) for each in ("finished", "failed", "running", "pending")] == [9, 1, 1, 1]
    assert [device["name"] for device in found["devices"]] == ["n0:0", "n0:1", "n0:2", "n0:3"]
    assert found["origin"] == START
    assert [(plan[0], plan[4]) for plan in found["plans"]] == [(1, "the run began"), (2, "a task failed")]
    assert [each["kind"] for each in found["incidents"]] == ["warned", "failed", "lost"]
    assert found["comparison"]["interrupted"] == 2
    assert found["machine"].startswith("n0: 4 × h100")
    fused = [row["spans"][0] for row in found["tasks"][:3]]
    assert {(span[0], span[8], *span[7]) for span in fused} == {("p0", "fuse", "n0:0")}
    assert found["tasks"][3]["metrics"]["loss"][0] == "NaN", "the last value, by its name"
    assert [row["name"] for row in found["tasks"]] == [task.name for task in tasks]


def test_an_empty_store_is_shown(store: Store):
    found = shown(store)
    assert (found["tasks"], found["workloads"], found["left"], found["account"]) == ([], [], None, None)


def test_tasks_begun_anew_count_from_there_and_earlier_attempts_are_told_from_theirs(store: Store):
    fill_anew(store)
    found, anew = shown(store), START + 10_000
    assert (found["origin"], found["anew"]) == (anew + 1, anew)
    assert [(row["attempts"], row["former_attempts"], len(row["earlier"])) for row in found["tasks"]] == [(1, 1, 1)] * 2
    assert (found["comparison"]["measured"], found["comparison"]["active"]) == (50.0, 50.0)
    assert found["comparison"]["compared"] == 3, "predictions of earlier attempts are judged, too"


def test_tasks_of_another_workload_count_from_their_own_start(store: Store):
    fill_sweep(store)
    fill_anew(store)
    assert (shown(store)["origin"], shown(store)["anew"]) == (START, None)
    assert shown(store, workload="again")["origin"] == START + 10_001


def test_it_accounts_for_every_second(store: Store):
    fill_sweep(store)
    assert shown(store)["account"] is None, "a store of before says nothing of it"
    at = max(event.at_seconds for _, event in store.events())
    order = {"placement": "p", "purpose": "train", "devices": ("n0:0",), "duration_seconds": 40.0, "busy_seconds": 20.0}
    store.add(events=[DevicesReleased(at_seconds=at, seconds=FrozenDict({"step": 30.0, "saving": 10.0}), **order)])
    found = shown(store)["account"]
    causes = {cause: seconds for cause, seconds, _, _ in found["causes"]}
    assert (causes["training"], causes["saving"]) == (30.0, 10.0)
    assert sum(causes.values()) == pytest.approx(found["whole"] * found["devices"])
    assert found["utilisation"] == pytest.approx(20.0 / (found["whole"] * found["devices"]))


def test_a_task_that_was_edited_is_told_from_its_successor(store: Store):
    old, new = make_task("a", width=1), make_task("a", width=2)
    changed = read_event("changed", task=old.identity, at_seconds=1.0, data={"by": new.identity})
    store.add(tasks=[("w", old), ("w", new)], events=[changed])
    assert [row.get("former", False) for row in shown(store)["tasks"]] == [True, False]


def test_only_the_end_of_a_log_is_kept(store: Store):
    task = make_task("a")
    log = "\n".join(f"line {n}" for n in range(500))
    store.add(tasks=[("w", task)], events=[read_event("lost", task=task.identity, at_seconds=1.0, data={"log": log})])
    (incident,) = shown(store)["incidents"]
    assert incident["log"].splitlines()[0] == "line 460"
    assert incident["reason"] == "no reason was given"


def test_no_part_of_a_secret_is_left_where_a_log_is_cut(store: Store):
    key = "\n".join(f"line-{number:04}-of-a-key" for number in range(60))
    task = make_task("a", auth=key)
    store.add(tasks=[("w", task)], events=[read_event("lost", task=task.identity, at_seconds=1.0, data={"log": key})])
    assert shown(store)["incidents"][0]["log"] == "***"


def test_warnings_do_not_push_out_failures(store: Store):
    task = make_task("a")
    failed = read_event("failed", task=task.identity, at_seconds=0.0, data={"reason": "nan"})
    warned = [read_event("warned", at_seconds=float(n), data={"message": "m"}) for n in range(1, 500)]
    store.add(tasks=[("w", task)], events=[failed, *warned])
    found = shown(store)
    assert found["incidents"][0]["kind"] == "failed"
    assert found["incidents_total"] == 500


def test_who_asked_for_something_is_on_record(store: Store):
    task = make_task("a")
    asked = {"priority": 2.0, "asked_by": "ada, on the page"}
    store.add(tasks=[("w", task)], events=[read_event("prioritized", task=task.identity, at_seconds=5.0, data=asked)])
    assert shown(store)["requests"] == [[5.0, "prioritized", task.identity, "ada, on the page", "priority 2"]]
    assert shown(store)["tasks"][0]["priority"] == 2.0


def test_numbers_that_json_cannot_spell_have_names(store: Store):
    task = make_task("a", rate=float("inf"))
    points = [Point(task=task.identity, name="loss", step=1, value=float("-inf"), at_seconds=1.0)]
    store.add(tasks=[("w", task)], points=points)
    (row,) = shown(store)["tasks"]
    assert row["metrics"]["loss"] == ["-Infinity", None]
    assert row["given"]["rate"] == "Infinity"
