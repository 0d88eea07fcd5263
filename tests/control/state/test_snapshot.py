"""The problem that planners read: families by what a task may still choose, and why some can choose nothing."""

from dovetail.control.state.snapshot import Waiting, snapshot, unplaceable, without
from dovetail.planning import PLANNERS, check
from dovetail.planning.explanation import explain
from dovetail.vocabulary import Profile, Rejection
from tests.control.simulations import cluster


def profile(family="f", *, count=1, seconds=1.0, peak_bytes=1 << 30):
    return Profile(family=family, kind="sim", count=count, step_seconds=seconds, peak_bytes=peak_bytes)


BOTH = [profile(count=1), profile(count=2, seconds=0.6)]


def counts(problem, family):
    return sorted(option.count for option in problem.options if option.families == (family,))


def test_equal_tasks_are_one_family_with_every_option():
    waiting = [Waiting(task=f"t{n}", family="f", steps=10 + n) for n in range(3)]
    problem = snapshot(waiting, profiles=BOTH, cluster=cluster())
    (family,) = problem.families
    assert [(member.task, member.steps) for member in family.members] == [("t0", 10), ("t1", 11), ("t2", 12)]
    assert counts(problem, family.name) == [1, 2]


def test_a_task_that_has_begun_keeps_its_device_count():
    waiting = [Waiting(task="fresh", family="f", steps=10), Waiting(task="begun", family="f", steps=10, count=2)]
    problem = snapshot(waiting, profiles=BOTH, cluster=cluster())
    by_task = {family.members[0].task: family.name for family in problem.families}
    assert counts(problem, by_task["begun"]) == [2]
    assert counts(problem, by_task["fresh"]) == [1, 2]
    plan = PLANNERS["list"](problem)
    check(plan.schedule, problem.cluster)
    (placement,) = [each for each in plan.schedule.placements if each.tasks == ("begun",)]
    assert len(placement.devices) == 2


def test_an_option_of_a_task_that_has_begun_says_where_it_was_measured_and_its_refusals_are_explained():
    waiting = [Waiting(task="begun", family="f", steps=10, count=2)]
    failed = Rejection(families=("f",), technique="shard", kind="sim", count=2, reason="has buffers.")
    problem = snapshot(waiting, profiles=BOTH, cluster=cluster(), rejected=[failed])
    (option,) = problem.options
    assert option.families != option.measured_families == ("f",)
    plan = PLANNERS["list"](problem)
    assert any("has buffers." in line for line in explain(problem, plan.schedule))


def test_a_kept_count_that_this_machine_does_not_have_gives_way():
    waiting = [Waiting(task="begun", family="f", steps=10, count=8)]
    problem = snapshot(waiting, profiles=BOTH, cluster=cluster())
    assert counts(problem, problem.families[0].name) == [1, 2]


def test_what_fits_nowhere_is_named_with_the_reason_and_left_out():
    waiting = [Waiting(task="small", family="f", steps=10), Waiting(task="huge", family="g", steps=10)]
    problem = snapshot(waiting, profiles=[*BOTH, profile("g", peak_bytes=100 << 30)], cluster=cluster())
    reasons = unplaceable(problem)
    assert list(reasons) == ["huge"]
    assert reasons["huge"].startswith("no option fits it: needs ")
    assert "64.0 GiB" in reasons["huge"]
    left = without(problem, reasons)
    assert [member.task for family in left.families for member in family.members] == ["small"]
    check(PLANNERS["list"](left).schedule, left.cluster)


def test_what_was_never_measured_says_so():
    problem = snapshot([Waiting(task="a", family="f", steps=1)], profiles=[], cluster=cluster())
    assert unplaceable(problem) == {"a": "no option fits it: none was measured"}


def test_a_kept_task_that_fits_nowhere_names_its_own_family_reasons_only():
    waiting = [Waiting(task="a", family="f", steps=1), Waiting(task="b", family="ff", steps=1)]
    huge = [profile("f", peak_bytes=100 << 30), profile("ff", peak_bytes=200 << 30)]
    reasons = unplaceable(snapshot(waiting, profiles=huge, cluster=cluster()))
    assert reasons["a"] != reasons["b"]
    assert reasons["a"].count("needs") == reasons["b"].count("needs") == 1
