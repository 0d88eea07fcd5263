"""The laws of the list planner, on every small problem, and its words where there is no plan."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning import PLANNERS, Problem, check
from dovetail.planning import plan_list as plan
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, NoFeasiblePlan, Plan, Schedule
from dovetail.vocabulary.decisions import Rejection

from ..brute_force import shortest_makespan
from ..problems import CPU, family, option, placement, problems, scaled


def schedule_of(made: Plan) -> Schedule:
    assert made.schedule is not None
    return made.schedule


def makespan(problem: Problem) -> float:
    return schedule_of(plan(problem)).makespan_seconds


@settings(max_examples=40, deadline=None)
@given(problems())
def test_every_plan_passes_the_check_places_every_task_once_and_keeps_the_bound(problem: Problem) -> None:
    made = plan(problem)
    check(schedule_of(made), problem.cluster, running=problem.running)
    placed = sorted(each.tasks[0] for each in schedule_of(made).placements)
    assert placed == sorted(member.task for each in problem.families for member in each.members)
    assert schedule_of(made).makespan_seconds >= made.bound_seconds * (1 - 1e-9)
    for each in schedule_of(made).placements:
        assert each.duration_seconds == each.option.seconds(each.steps)


# The factor is what was found, not what is proven, so the examples are the same in every run.
@settings(max_examples=40, deadline=None, derandomize=True)
@given(problems())
def test_within_twice_the_best_schedule_and_the_bound_below_it(problem: Problem) -> None:
    made = plan(problem)
    best = shortest_makespan(problem, at_most=schedule_of(made).makespan_seconds)
    assert made.bound_seconds <= best * (1 + 1e-9)
    assert schedule_of(made).makespan_seconds <= 2 * best


@settings(max_examples=30, deadline=None)
@given(problems(), st.integers(0, 1000))
def test_the_order_in_which_a_problem_is_written_changes_nothing(problem: Problem, seed: int) -> None:
    shuffle = random.Random(seed)

    def shuffled(items: tuple) -> tuple:
        return tuple(shuffle.sample(items, len(items)))

    families = tuple(dataclasses.replace(each, members=shuffled(each.members)) for each in shuffled(problem.families))
    other = dataclasses.replace(
        problem, families=families, options=shuffled(problem.options), running=shuffled(problem.running)
    )
    assert schedule_of(plan(other)) == schedule_of(plan(problem))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_doubling_all_times_doubles_the_makespan(problem: Problem) -> None:
    assert makespan(scaled(problem, 2.0)) == 2 * makespan(problem)


def test_never_worse_than_all_frugal_or_all_fast() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=4)
    offered = (option(1, seconds=1.0), option(4, seconds=0.3))
    one, four = (family(a=100), family(a=100, b=100, c=100, d=100))
    assert makespan(Problem(cluster=cluster, families=(one,), options=offered)) == pytest.approx(30.0)
    assert makespan(Problem(cluster=cluster, families=(four,), options=offered)) == pytest.approx(100.0)


def test_a_long_task_is_made_wide_and_the_others_stay_narrow() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=4)
    offered = (option(1, seconds=1.0), option(2, seconds=0.55))
    made = plan(Problem(cluster=cluster, families=(family(long=100, a=50, b=50, c=10),), options=offered))
    counts = {each.tasks[0]: each.option.count for each in schedule_of(made).placements}
    assert (counts["long"], counts["a"], counts["b"]) == (2, 1, 1)
    assert schedule_of(made).makespan_seconds <= 60.0


def test_unlike_kinds_share_the_work() -> None:
    fast, slow = Kind(name="fast", processor="cuda"), Kind(name="slow", processor="cuda")
    cluster = Cluster(
        kinds=(fast, slow),
        nodes=(Node(name="n0", cores=8, memory_bytes=8),),
        devices=tuple(Device(name=f"n0:{i}", kind=("fast", "slow")[i], node="n0", index=i) for i in range(2)),
    )
    offered = (option(kind="fast", seconds=1.0), option(kind="slow", seconds=2.0))
    made = plan(Problem(cluster=cluster, families=(family(a=10, b=10, c=10),), options=offered))
    assert schedule_of(made).makespan_seconds == 20.0
    assert sorted(each.option.kind for each in schedule_of(made).placements) == ["fast", "fast", "slow"]


def test_what_runs_keeps_its_devices_memory_and_cores_until_it_ends() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8)
    under_way = placement("old", of=option(host_bytes=5), on=("n0:0",), start=-10.0, seconds=17.0)
    families = (family(a=10),)
    small = Problem(cluster=cluster, families=families, options=(option(host_bytes=3),), running=(under_way,))
    large = dataclasses.replace(small, options=(option(host_bytes=4),))
    assert schedule_of(plan(small)).placements[0].devices == ("n0:1",)
    assert schedule_of(plan(small)).placements[0].start_seconds == 0.0
    assert schedule_of(plan(large)).placements[0].start_seconds == 7.0


def test_nothing_to_do_is_an_empty_schedule() -> None:
    cluster = Cluster.uniform(CPU)
    for families in ((), (family(),), (family(done=0),)):
        made = plan(Problem(cluster=cluster, families=families, options=()))
        assert made == Plan(schedule=Schedule(placements=()))


def test_members_without_steps_left_are_not_placed() -> None:
    made = plan(Problem(cluster=Cluster.uniform(CPU), families=(family(a=3, done=0),), options=(option(),)))
    assert [each.tasks for each in schedule_of(made).placements] == [("a",)]


def test_tasks_that_nothing_fits_are_named_with_their_reasons_and_what_to_do() -> None:
    rejected = Rejection(
        families=("large",), technique="resident", kind="cpu", count=1, reason="needs 9 GiB; there are 8 GiB."
    )
    problem = Problem(
        cluster=Cluster.uniform(CPU, memory_bytes=8 << 30),
        families=(family("large", b=5, a=5), family("new", c=5), family("small", d=5), family("wide", e=5)),
        options=(option(family="small"), option(2, family="wide")),
        rejections=(rejected,),
    )
    with pytest.raises(NoFeasiblePlan) as caught:
        plan(problem)
    assert str(caught.value) == (
        "every task must have an option that fits the cluster, alone or in a gang whose other families have tasks; "
        "these have none:\n"
        "- 'a', 'b': resident on 1 × cpu needs 9 GiB; there are 8 GiB.\n"
        "- 'c': nothing was measured of family 'new' on the kinds of this cluster. Measure it first.\n"
        "- 'e': resident on 2 × cpu needs 2 × cpu on one node; the most is 1.\n"
        "Leave them out, allow other techniques (--techniques, techniques=), or add nodes that are large enough."
    )


def test_an_option_that_no_node_holds_is_not_used_and_is_reported() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8)
    offered = (option(1, seconds=1.0), option(2, seconds=0.1, host_bytes=9))
    made = plan(Problem(cluster=cluster, families=(family(a=5),), options=offered))
    assert schedule_of(made).placements[0].option.count == 1
    assert [(each.count, each.needed_bytes, each.free_bytes) for each in made.rejections] == [(2, 9, 8)]


def test_hundreds_of_tasks_on_unlike_nodes_pass_the_check() -> None:
    random_ = random.Random(0)
    nodes = tuple(Node(name=f"n{i}", cores=4 + i, memory_bytes=10 + 4 * i, disk_bytes=(0, 20)[i % 2]) for i in range(6))
    cluster = Cluster(
        kinds=(CPU,),
        nodes=nodes,
        devices=tuple(
            Device(name=f"{node.name}:{index}", kind="cpu", node=node.name, index=index)
            for node in nodes
            for index in range(node.cores)
        ),
    )
    families, offered = [], []
    for number in range(6):
        steps = [random_.randint(1, 100) for _ in range(60)]
        members = tuple(Member(task=f"{number}-{i}", steps=count) for i, count in enumerate(steps))
        families.append(Family(name=f"f{number}", members=members))
        sizes = {"host_bytes": random_.randint(1, 9), "disk_bytes": random_.randint(0, 9)}
        offered += [
            option(count, family=f"f{number}", seconds=1 / count**0.8, cores=count, **sizes) for count in (1, 2, 4)
        ]
    problem = Problem(cluster=cluster, families=tuple(families), options=tuple(offered))
    made = PLANNERS["list"](problem)
    check(schedule_of(made), cluster)
    assert len(schedule_of(made).placements) == 360
    assert len(made.explanation) == 6, "beyond 200 tasks, one line for each family"


def test_deadlines_are_kept_or_refused() -> None:
    members = (Member(task="long", steps=30), Member(task="due", steps=3, deadline_seconds=4.0))
    problem = Problem(cluster=Cluster.uniform(CPU), families=(Family(name="f", members=members),), options=(option(),))
    assert [each.tasks for each in plan(problem).schedule.placements] == [("due",), ("long",)]
    late = dataclasses.replace(members[0], deadline_seconds=31.0)
    both = dataclasses.replace(problem, families=(Family(name="f", members=(late, members[1])),))
    with pytest.raises(NoFeasiblePlan, match="by their deadlines, and no schedule does"):
        plan(both)
