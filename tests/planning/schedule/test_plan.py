"""The laws of the planner, on every small problem and on hand-written ones, and its words where there is none."""

import dataclasses
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dovetail.planning import PLANNERS, Problem, check
from dovetail.planning.schedule.plan import plan
from dovetail.planning.schedule.shadow import with_one_more
from dovetail.vocabulary import (
    Cluster,
    Device,
    InvalidRecord,
    Kind,
    Node,
    NoFeasiblePlan,
    Option,
    Plan,
    Schedule,
)

from ..brute_force import shortest_makespan
from ..problems import CPU, family, option, placement, problems, scaled

# A schedule this close to its bound counts as optimal: the planner does not look closer.
PRECISION = 1e-3


def schedule_of(made: Plan) -> Schedule:
    assert made.schedule is not None
    return made.schedule


def makespan(problem: Problem, *, work: float = 2.0) -> float:
    return schedule_of(plan(problem, work=work)).makespan_seconds


def gang(*families: str, seconds: float, count: int = 1, **more: int) -> Option:
    return Option(
        families=families,
        technique="fuse",
        kind="cpu",
        count=count,
        step_seconds=(seconds,) * len(families),
        **{"cores": 0} | more,
    )


def placed(made: Plan) -> list[str]:
    return sorted(task for each in schedule_of(made).placements for task in each.tasks)


def drawn(tasks: int, *, seed: int, nodes: int = 1, devices: int = 4) -> Problem:
    dice = random.Random(seed)
    families, offered = [], []
    for number in range(tasks):
        families.append(family(f"f{number}", **{f"t{number}": 100}))
        seconds, exponent = dice.uniform(1.0, 20.0), dice.uniform(0.6, 0.95)
        offered += [option(n, family=f"f{number}", seconds=seconds / n**exponent) for n in (1, 2, 4)]
    cluster = Cluster.uniform(CPU, nodes=nodes, devices_per_node=devices)
    return Problem(cluster=cluster, families=tuple(families), options=tuple(offered))


@settings(max_examples=30, deadline=None)
@given(problems(), st.sampled_from([0.0, 2.0]))
def test_every_plan_passes_the_check_places_every_task_once_and_keeps_the_bound(problem: Problem, work: float) -> None:
    made = plan(problem, work=work)
    check(schedule_of(made), problem.cluster, running=problem.running)
    assert placed(made) == sorted(member.task for each in problem.families for member in each.members)
    assert schedule_of(made).makespan_seconds >= made.bound_seconds * (1 - 1e-9)
    for each in schedule_of(made).placements:
        assert each.duration_seconds == each.option.seconds(each.steps)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(problems())
def test_brute_force_agrees(problem: Problem) -> None:
    made = plan(problem, work=3.0)
    found = schedule_of(made).makespan_seconds
    best = shortest_makespan(problem, at_most=found * (1 + 1e-9))
    assert found <= best * (1 + PRECISION)
    assert made.bound_seconds <= best * (1 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(problems(), st.integers(0, 1000))
def test_the_order_in_which_a_problem_is_written_changes_nothing(problem: Problem, seed: int) -> None:
    shuffle = random.Random(seed)

    def shuffled(items: tuple) -> tuple:
        return tuple(shuffle.sample(items, len(items)))

    families = tuple(dataclasses.replace(each, members=shuffled(each.members)) for each in shuffled(problem.families))
    other = dataclasses.replace(problem, families=families, options=shuffled(problem.options))
    assert makespan(other) == makespan(problem)


@settings(max_examples=10, deadline=None)
@given(problems())
def test_doubling_all_times_doubles_the_makespan(problem: Problem) -> None:
    assert makespan(scaled(problem, 2.0)) == pytest.approx(2 * makespan(problem), rel=PRECISION)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(problems(), st.data())
def test_a_device_more_worsens_neither_bound_nor_makespan(problem: Problem, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(problem.cluster.devices)).kind
    larger = dataclasses.replace(problem, cluster=with_one_more(problem.cluster, kind))
    before, after = plan(problem, work=3.0), plan(larger, work=3.0)
    assume(before.gap <= PRECISION)
    assert after.bound_seconds <= before.bound_seconds * (1 + 2 * PRECISION)
    assert schedule_of(after).makespan_seconds <= schedule_of(before).makespan_seconds * (1 + PRECISION)


@pytest.mark.parametrize("seed", range(2))
def test_a_device_more_worsens_nothing_among_five_wide_tasks(seed: int) -> None:
    before, after = (plan(drawn(5, seed=seed, devices=devices), work=3.0) for devices in (4, 5))
    assert after.bound_seconds <= before.bound_seconds * (1 + PRECISION)
    assert schedule_of(after).makespan_seconds <= schedule_of(before).makespan_seconds * (1 + PRECISION)


@pytest.mark.parametrize("seed", range(3))
def test_half_a_dozen_tasks_are_solved_to_within_one_percent_and_better_than_the_list(seed: int) -> None:
    problem = drawn(6, seed=seed)
    made = plan(problem, work=3.0)
    check(schedule_of(made), problem.cluster)
    assert made.gap <= 0.01
    assert schedule_of(made).makespan_seconds <= schedule_of(PLANNERS["list"](problem)).makespan_seconds * 1.0005


def test_a_gang_is_chosen_where_two_take_the_time_of_one() -> None:
    tasks = (family("f", a=10, b=10, c=10),)
    made = plan(Problem(cluster=Cluster.uniform(CPU), families=tasks, options=(option(), gang("f", "f", seconds=1.0))))
    assert placed(made) == ["a", "b", "c"]
    assert schedule_of(made).makespan_seconds == pytest.approx(20.0)
    assert sorted(len(each.tasks) for each in schedule_of(made).placements) == [1, 2]


def test_a_gang_that_is_slower_than_one_after_another_is_not_chosen() -> None:
    tasks = (family("f", a=10), family("g", b=10))
    offered = (option(family="f"), option(family="g"), gang("f", "g", seconds=2.5))
    made = plan(Problem(cluster=Cluster.uniform(CPU), families=tasks, options=offered))
    assert {each.option.technique for each in schedule_of(made).placements} == {"resident"}


def test_the_members_of_a_gang_are_chosen_so_that_the_long_ones_run_together() -> None:
    tasks = (family("f", a=100, b=100, c=10, d=10),)
    made = plan(Problem(cluster=Cluster.uniform(CPU), families=tasks, options=(gang("f", "f", seconds=1.0),)))
    assert sorted(each.tasks for each in schedule_of(made).placements) == [("a", "b"), ("c", "d")]
    assert schedule_of(made).makespan_seconds == pytest.approx(110.0)


def test_many_members_with_different_steps_are_offered_as_neighbours() -> None:
    tasks = (family("f", **{f"t{number:02}": 10 + number for number in range(40)}),)
    offered = (option(), gang("f", "f", "f", "f", seconds=1.0))
    problem = Problem(cluster=Cluster.uniform(CPU, devices_per_node=2), families=tasks, options=offered)
    made = plan(problem, work=1.0)
    check(schedule_of(made), problem.cluster)
    assert len(placed(made)) == 40
    assert made.gap <= 0.15


def test_three_tasks_that_only_run_in_pairs_have_no_plan() -> None:
    tasks = (family("f", a=10, b=10, c=10),)
    with pytest.raises(NoFeasiblePlan, match="offer an option with which a task runs alone"):
        plan(Problem(cluster=Cluster.uniform(CPU), families=tasks, options=(gang("f", "f", seconds=1.0),)))


@pytest.mark.parametrize("work", [0.0, 2.0])
def test_what_runs_keeps_its_devices_memory_and_cores_until_it_ends(work: float) -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8)
    under_way = placement("old", of=option(host_bytes=5), on=("n0:0",), start=-10.0, seconds=17.0)
    small = Problem(cluster=cluster, families=(family(a=10),), options=(option(host_bytes=3),), running=(under_way,))
    large = dataclasses.replace(small, options=(option(host_bytes=4),))
    assert schedule_of(plan(small, work=work)).placements[0].devices == ("n0:1",)
    assert schedule_of(plan(small, work=work)).placements[0].start_seconds == 0.0
    assert schedule_of(plan(large, work=work)).placements[0].start_seconds == 7.0


def test_no_gang_spans_nodes() -> None:
    cluster = Cluster.uniform(CPU, nodes=2, devices_per_node=3)
    offered = (option(2, seconds=1.0),)
    made = plan(Problem(cluster=cluster, families=(family(a=10, b=10, c=10),), options=offered))
    check(schedule_of(made), cluster)
    assert schedule_of(made).makespan_seconds == pytest.approx(20.0)
    assert made.gap <= PRECISION, "six devices would do for three pairs, but two nodes of three do not"


def test_the_bound_counts_each_kind_for_what_it_can_do() -> None:
    kinds = (Kind(name="fast", processor="cuda"), Kind(name="slow", processor="cuda"))
    devices = tuple(Device(name=f"n0:{i}", kind=kinds[i].name, node="n0", index=i) for i in range(2))
    cluster = Cluster(kinds=kinds, nodes=(Node(name="n0", cores=8, memory_bytes=8),), devices=devices)
    offered = (option(kind="fast", seconds=1.0), option(kind="slow", seconds=4.0))
    tasks = family(**{f"t{number:02}": 10 for number in range(50)})
    made = plan(Problem(cluster=cluster, families=(tasks,), options=offered), work=0.0)
    assert made.bound_seconds == pytest.approx(400.0, rel=1e-3), "500 s of work at a rate of 1 + 1/4"
    assert made.gap <= 0.05


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_seconds_that_are_no_finite_numbers_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidRecord, match="seconds"):
        plan(
            Problem(cluster=Cluster.uniform(CPU), families=(family(a=1),), options=(option(seconds=seconds),)), work=0.0
        )


def test_nan_in_what_a_start_takes_is_refused() -> None:
    bad = dataclasses.replace(option(), start_seconds=math.nan)
    with pytest.raises(InvalidRecord, match=r"must be finite .* Measure it again, or leave it out"):
        plan(Problem(cluster=Cluster.uniform(CPU), families=(family(a=1),), options=(bad,)))


@pytest.mark.parametrize("work", [-1.0, math.nan])
def test_work_must_be_a_number_of_at_least_zero(work: float) -> None:
    with pytest.raises(InvalidRecord, match="work must be a number of at least 0"):
        plan(Problem(cluster=Cluster.uniform(CPU), families=(), options=()), work=work)


def test_without_work_there_is_a_plan_with_its_bound() -> None:
    problem = drawn(30, seed=0, nodes=2)
    made = plan(problem, work=0.0)
    check(schedule_of(made), problem.cluster)
    assert 0 < made.bound_seconds <= schedule_of(made).makespan_seconds
    assert made.gap <= 0.1
    assert plan(problem, work=0.0) == made


def test_thousands_of_modes_have_a_first_plan_with_a_bound_that_takes_no_solver() -> None:
    problem = drawn(1700, seed=0, nodes=50)
    made = plan(problem, work=0.0)
    check(schedule_of(made), problem.cluster)
    assert len(placed(made)) == 1700
    assert 0 < made.bound_seconds <= schedule_of(made).makespan_seconds
    assert made.gap <= 0.1


def test_nothing_to_do_is_an_empty_schedule() -> None:
    for families in ((), (family(),), (family(done=0),)):
        made = plan(Problem(cluster=Cluster.uniform(CPU), families=families, options=(option(),)))
        assert made == Plan(schedule=Schedule(placements=()))


def test_tasks_that_nothing_fits_are_named() -> None:
    cluster = Cluster.uniform(CPU, memory_bytes=8 << 30)
    tasks = (family("wide", b=5, a=5), family("new", c=5), family("small", d=5))
    offered = (option(family="small"), option(2, family="wide"))
    with pytest.raises(NoFeasiblePlan) as caught:
        plan(Problem(cluster=cluster, families=tasks, options=offered))
    assert "'a', 'b': resident on 2 × cpu needs 2 × cpu on one node; the most is 1." in str(caught.value)
    assert "'c': nothing was measured of family 'new'" in str(caught.value)


def test_hundreds_of_tasks_short_of_memory_on_unlike_nodes_pass_the_check() -> None:
    dice = random.Random(0)
    nodes = tuple(Node(name=f"n{i}", cores=4 + i, memory_bytes=10 + 4 * i, disk_bytes=(0, 20)[i % 2]) for i in range(6))
    devices = tuple(
        Device(name=f"{node.name}:{index}", kind="cpu", node=node.name, index=index)
        for node in nodes
        for index in range(node.cores)
    )
    families, offered = [], []
    for number in range(6):
        families.append(family(f"f{number}", **{f"t{number}-{i}": dice.randint(1, 100) for i in range(40)}))
        sizes = {"host_bytes": dice.randint(1, 9), "disk_bytes": dice.randint(0, 9)}
        offered += [option(n, family=f"f{number}", seconds=1 / n**0.8, cores=n, **sizes) for n in (1, 2, 4)]
    problem = Problem(
        cluster=Cluster(kinds=(CPU,), nodes=nodes, devices=devices), families=tuple(families), options=tuple(offered)
    )
    made = plan(problem, work=0.0)
    check(schedule_of(made), problem.cluster)
    assert len(placed(made)) == 240
    assert made.gap <= 0.25


def test_a_cluster_of_no_devices_is_refused() -> None:
    nowhere = Cluster(kinds=(CPU,), nodes=(), devices=())
    with pytest.raises(NoFeasiblePlan, match="a cluster must have at least one device to place 2 tasks on, found none"):
        plan(Problem(cluster=nowhere, families=(family(a=1, b=2),), options=(option(),)))


def test_the_smallest_change_that_would_fit_a_task_is_told() -> None:
    cluster = Cluster.uniform(CPU, memory_bytes=8 << 30)
    offered = (option(host_bytes=12 << 30), dataclasses.replace(option(host_bytes=9 << 30), technique="spill"))
    with pytest.raises(
        NoFeasiblePlan, match=r"'a': .* smallest change .* fit it: 1\.0 GiB more for spill on 1 × cpu\."
    ):
        plan(Problem(cluster=cluster, families=(family(a=5),), options=offered))


def test_a_deadline_that_no_option_meets_is_refused() -> None:
    late = dataclasses.replace(family(a=10).members[0], deadline_seconds=5.0)
    tasks = dataclasses.replace(family(), members=(late, *family(b=10).members))
    with pytest.raises(NoFeasiblePlan, match=r"- 'a' is due in 5\.0 s; its fastest option takes 10\.0 s"):
        plan(Problem(cluster=Cluster.uniform(CPU), families=(tasks,), options=(option(),)))
