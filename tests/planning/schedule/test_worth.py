import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning import Problem, Trial, worthwhile
from dovetail.planning.schedule.plan import plan_list
from dovetail.planning.schedule.worth import TRIAL_SECONDS, WORKER_SECONDS
from dovetail.vocabulary import Cluster, Family, FamilyKey, Kind, Member, Option

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
ONE = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
MORE = Trial(family="f", technique="resident", kind="cpu", count=2)


def problem(*steps: int, options: tuple[Option, ...] = (ONE,)) -> Problem:
    members = tuple(Member(task=f"t{n}", steps=count) for n, count in enumerate(steps))
    return Problem(cluster=CLUSTER, families=(Family(name="f", members=members),), options=options)


def asked(found: Problem) -> tuple[Trial, ...]:
    return worthwhile([MORE], found)


def test_a_family_never_measured_is_always_worth_a_trial() -> None:
    one = dataclasses.replace(MORE, count=1)
    assert worthwhile([MORE, one], problem(10, options=())) == (one,)


def test_one_task_on_two_devices_is_worth_knowing() -> None:
    assert asked(problem(100)) == (MORE,)


def test_many_equal_tasks_are_not() -> None:
    assert asked(problem(*[100] * 20)) == ()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_what_is_not_worth_a_trial_could_not_have_helped_much(steps: list[int]) -> None:
    found = problem(*steps)
    made = plan_list(found).schedule
    assert made is not None
    if not asked(found):
        perfect = dataclasses.replace(ONE, count=2, step_seconds=(0.5,), cores=2)
        best = plan_list(problem(*steps, options=(ONE, perfect))).schedule
        assert best is not None
        gain_seconds = made.makespan_seconds - best.makespan_seconds
        assert gain_seconds <= max(0.05 * made.makespan_seconds, TRIAL_SECONDS + WORKER_SECONDS) + 1e-9


FUSE = Trial(family="f", technique="fuse", kind="cpu", count=1, knobs={"members": 3})


def test_a_gang_is_worth_a_trial_where_there_are_tasks_for_it_and_time_to_save() -> None:
    assert worthwhile([FUSE], problem(*[100] * 8)) == (FUSE,)
    assert worthwhile([FUSE], problem(*[1] * 2)) == ()


def test_each_technique_is_judged_by_itself() -> None:
    # Twenty equal tasks gain nothing from two devices each.
    assert worthwhile([MORE, FUSE], problem(*[100] * 20)) == (FUSE,)


def test_what_gangs_save_is_not_taken_for_what_more_devices_would() -> None:
    gang = Option(families=("f",) * 4, technique="fuse", kind="cpu", count=1, step_seconds=(2.0,) * 4, cores=1)
    # With gangs the bound is half of what tasks alone could do; two devices for one task add nothing to that.
    assert worthwhile([MORE], problem(*[100] * 8, options=(ONE, gang))) == ()


def test_a_budget_goes_to_what_could_save_most_for_what_it_takes() -> None:
    found = problem(100, 100, 100)
    everything = worthwhile([MORE, FUSE], found)
    assert everything == (MORE, FUSE)
    # A trial of a gang takes a device for as long as its own takes; one of two devices a new process as well.
    assert worthwhile([MORE, FUSE], found, budget_seconds=2.0) == (FUSE,)
    assert worthwhile([MORE, FUSE], found, budget_seconds=0.0) == ()


def test_tasks_that_keep_their_threads_need_no_first_trial_where_their_family_had_one() -> None:
    key = FamilyKey(family="f", threads=1)
    kept = Family(name=str(key), members=tuple(Member(task=str(n), steps=10) for n in range(4)), key=key)
    one = Option(families=(str(key),), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    more = Trial(family="f", technique="resident", kind="cpu", count=2)
    assert worthwhile([more], Problem(cluster=cluster, families=(kept,), options=(one,))) == ()


def test_copies_over_two_nodes_are_worth_a_trial_where_one_has_a_single_device() -> None:
    wide = Trial(family="f", technique="replicate", kind="cpu", count=2, knobs={"nodes": 2})
    long = dataclasses.replace(problem(1000), cluster=Cluster.uniform(CLUSTER.kinds[0], nodes=2))
    assert worthwhile([wide], long) == (wide,)
    assert worthwhile([dataclasses.replace(wide, knobs={})], long) == (), "no node has two"
