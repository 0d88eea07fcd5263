"""What a report shows is read once, for one workload or for all."""

import math

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import DovetailError, Plan, Schedule, read_event
from dovetail.web import report_data
from dovetail.web.report_data import read
from tests.web.synthetic import START, fill_anew, fill_many, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_the_sweep_is_read(store: Store):
    tasks = fill_sweep(store)
    made = read(store)
    assert made.workload == "sweep"
    assert made.summary.counts["finished"] == 9
    assert (made.summary.counts["failed"], made.summary.counts["running"], made.summary.counts["pending"]) == (1, 1, 1)
    assert list(made.planned) == ["first", "latest"]
    assert made.devices == ["n0:0", "n0:1", "n0:2", "n0:3"]
    assert [metric.name for metric in made.metrics] == ["loss", "accuracy"]
    assert made.origin_seconds == START
    fused = next(bar for bar in made.measured if len(bar.tasks) == 3)
    assert (fused.technique, set(fused.tasks)) == ("fuse", {task.identity for task in tasks[:3]})
    assert [one.kind for one in made.incidents] == ["warned", "failed", "lost"]
    assert made.comparison.interrupted == 2
    assert sum(target.reached is not None for target in made.targets) == 6


def test_tasks_begun_anew_count_from_there_and_earlier_attempts_are_told_from_theirs(store: Store):
    fill_anew(store)
    made, anew = read(store), START + 10_000
    assert (made.origin_seconds, made.begun_anew) == (anew + 1, True)
    assert [(row.trained_seconds, row.attempts, row.former_attempts) for row in made.summary.rows] == [(50.0, 1, 1)] * 2
    assert (made.comparison.measured_seconds, made.comparison.active_seconds) == (50.0, 50.0)
    assert len(made.comparison.spans) == 3, "predictions of earlier attempts are judged, too"
    reached = made.targets[0].reached
    assert (reached.step, reached.trained_seconds, reached.wall_seconds) == (300, 30.0, 30.0)
    assert list(made.planned) == ["first"]
    assert {bar.start_seconds for bar in made.planned["first"]} == {anew + 1}
    outcomes = [(bar.start_seconds, bar.outcome) for bar in made.measured]
    assert outcomes[:2] == [(START + 2, "discarded")] * 2
    assert sorted(outcomes[2:]) == [(anew + 2, "completed"), (anew + 2, "running")]


def test_tasks_of_another_workload_count_from_their_own_start(store: Store):
    fill_sweep(store)
    fill_anew(store)
    assert (read(store).origin_seconds, read(store).begun_anew) == (START, False)
    assert read(store, workload="again").origin_seconds == START + 10_001


def test_an_empty_store_is_read(store: Store):
    made = read(store)
    assert (made.workload, made.devices, made.last_plan, made.metrics) == ("", [], None, ())


def test_an_unknown_workload_is_refused_with_the_known_ones(store: Store):
    fill_sweep(store)
    with pytest.raises(DovetailError, match=r"\['sweep'\], got 'swep'"):
        read(store, workload="swep")


def test_other_workloads_stay_out(store: Store):
    fill_sweep(store)
    fill_many(store, count=3)
    assert read(store, workload="many").summary.total == 3
    assert {bar.technique for bar in read(store, workload="many").measured} == {"resident"}
    assert read(store).workload == "sweep, many"
    assert read(store, workload="sweep").comparison.measured_seconds < 700


def test_secrets_are_masked_everywhere(store: Store):
    task = make_task("run-hunter22", password="hunter22")
    failed = read_event(
        "failed", task=task.identity, at_seconds=1.0, data={"reason": "bad hunter22", "log": "login hunter22"}
    )
    store.add(tasks=[("w", task)], events=[failed])
    made = read(store)
    assert made.names[task.identity] == "run-***"
    assert made.summary.rows[0].reason == "bad ***"
    assert (made.incidents[0].reason, made.incidents[0].log) == ("bad ***", "login ***")
    assert "hunter22" not in repr(made)


def test_a_task_that_was_edited_is_told_from_its_successor(store: Store):
    old, new = make_task("a", width=1), make_task("a", width=2)
    changed = read_event("changed", task=old.identity, at_seconds=1.0, data={"by": new.identity})
    store.add(tasks=[("w", old), ("w", new)], events=[changed])
    made = read(store)
    assert (made.names[old.identity], made.names[new.identity]) == ("a (former)", "a")
    assert made.summary.total == 1


def test_the_best_curves_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_data, "MOST_CURVES", 5)
    fill_many(store, count=40)
    broken = make_task("broken")
    store.add(
        tasks=[("many", broken)],
        points=[Point(task=broken.identity, name="loss", step=1, value=math.nan, at_seconds=1.0)],
    )
    (metric,) = read(store).metrics
    assert (metric.total, len(metric.curves)) == (41, 5)
    assert [read(store).name(task) for task in metric.curves] == [f"many-{n:05d}" for n in range(5)]


def test_only_the_end_of_a_log_is_kept(store: Store):
    task = make_task("a")
    log = "\n".join(f"line {n}" for n in range(500))
    store.add(tasks=[("w", task)], events=[read_event("lost", task=task.identity, at_seconds=1.0, data={"log": log})])
    (incident,) = read(store).incidents
    assert incident.log.splitlines()[0] == "line 460"
    assert incident.reason == "no reason was given"


def test_warnings_do_not_push_out_failures(store: Store):
    task = make_task("a")
    failed = read_event("failed", task=task.identity, at_seconds=0.0, data={"reason": "nan"})
    warned = [read_event("warned", at_seconds=float(n), data={"message": "m"}) for n in range(1, 500)]
    store.add(tasks=[("w", task)], events=[failed, *warned])
    made = read(store)
    assert made.incidents[0].kind == "failed"
    assert made.incidents_total == 500


def test_secrets_of_any_name_form_and_place_stay_out_of_a_report(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEAM_WEBHOOK", "opensesame")
    task = make_task("run-hunter22", dsn="hunter22", source="postgres://me:swordfish@db.example.com/x")
    said = "hunter22 aHVudGVyMjI= opensesame swordfish ghp_0123456789abcdef"
    failed = read_event("failed", task=task.identity, at_seconds=1.0, data={"reason": said, "log": said})
    finished = read_event(
        "finished", task=task.identity, at_seconds=2.0, data={"step": 1, "metrics": {f"loss {said}": 1.0}}
    )
    points = [Point(task=task.identity, name=f"loss {said}", step=1, value=1.0, at_seconds=1.0)]
    plan = Plan(schedule=Schedule(placements=()), explanation=(said,))
    store.add(tasks=[(f"sweep {said}", task)], events=[failed, finished], points=points)
    store.add_plan(plan, workload=f"sweep {said}", at_seconds=1.0)
    found = repr(read(store))
    for secret in ("hunter22", "aHVudGVyMjI", "opensesame", "swordfish", "ghp_0123456789abcdef"):
        assert secret not in found


def test_no_part_of_a_secret_is_left_where_a_log_is_cut(store: Store):
    key = "\n".join(f"line-{number:04}-of-a-key" for number in range(60))
    task = make_task("a", auth=key)
    store.add(tasks=[("w", task)], events=[read_event("lost", task=task.identity, at_seconds=1.0, data={"log": key})])
    assert read(store).incidents[0].log == "***"
