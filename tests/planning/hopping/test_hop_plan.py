"""From problems with shards to schedules of visits."""

import dataclasses

import pytest

from dovetail.planning import check, plan_list
from dovetail.planning.hopping import link_between_nodes, orders_of, plan_with_shards, unvisitable
from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.problem import EvaluationTour, Problem, ShardTour
from dovetail.vocabulary import Cluster, Family, FrozenDict, Kind, Link, Member, Option, Plan, Rejection, Schedule

CPU = Kind(name="cpu", processor="cpu")
HOMES = {"a": ("n0",), "b": ("n1",)}
OPTION = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), start_seconds=1.0)


def problem(tasks: int = 2, *, steps: int = 10, others: int = 0, **fields: object) -> Problem:
    """Tasks that visit a shard on each of two nodes, and others without shards."""
    cluster = Cluster.uniform(CPU, nodes=2)
    members = tuple(Member(task=f"t{n}", steps=2 * steps) for n in range(tasks))
    plain = tuple(Member(task=f"other {n}", steps=steps) for n in range(others))
    tour = ShardTour(epochs=((("a", steps), ("b", steps)),), homes=HOMES, **fields)  # type: ignore[arg-type]
    return Problem(
        cluster=cluster,
        families=(Family(name="f", members=(*members, *plain)),),
        options=(OPTION,),
        tours={member.task: tour for member in members},
    )


def schedule_of(plan: Plan) -> Schedule:
    assert plan.schedule is not None
    return plan.schedule


def test_each_shard_is_visited_on_its_node_and_the_plan_passes_the_check() -> None:
    found = problem(4)
    plan = plan_with_shards(found, plan_list)
    check(schedule_of(plan), found.cluster)
    nodes = {(each.tasks[0], each.shard): each.devices[0][:2] for each in schedule_of(plan).placements}
    assert nodes == {(f"t{n}", shard): HOMES[shard][0] for n in range(4) for shard in "ab"}
    assert {each.option.technique for each in schedule_of(plan).placements} == {"hop"}
    assert {each.duration_seconds for each in schedule_of(plan).placements} == {11.0}
    assert plan.gap <= 0.05
    assert {task: [sorted(epoch) for epoch in epochs] for task, epochs in orders_of(plan, found).items()} == {
        f"t{n}": [["a", "b"]] for n in range(4)
    }


def test_an_order_that_is_given_is_none_to_be_recorded() -> None:
    found = problem(is_ordered=True)
    plan = plan_with_shards(found, plan_list)
    assert orders_of(plan, found) == {}
    starts = {(each.tasks[0], each.shard): each.start_seconds for each in schedule_of(plan).placements}
    assert all(starts[f"t{n}", "a"] < starts[f"t{n}", "b"] for n in range(2))


def test_others_are_planned_behind_the_visits() -> None:
    found = problem(others=2)
    plan = plan_with_shards(found, plan_list)
    check(schedule_of(plan), found.cluster)
    placed = sorted(each.tasks[0] for each in schedule_of(plan).placements if not each.shard)
    assert placed == ["other 0", "other 1"]


def test_shards_are_read_from_afar_where_that_ends_sooner() -> None:
    # One shard has nearly all steps: its node would be busy while the other idles.
    long = {"epochs": ((("a", 50), ("b", 1)),), "homes": HOMES}
    for seconds, afar in ((0.001, True), (1e6, False)):
        found = problem(4)
        tour = ShardTour(**long, read_seconds={"a": seconds})  # type: ignore[arg-type]
        found = dataclasses.replace(found, tours=dict.fromkeys(found.tours, tour))
        plan = plan_with_shards(found, plan_list)
        nodes = {each.devices[0][:2] for each in schedule_of(plan).placements if each.shard == "a"}
        assert (nodes == {"n0", "n1"}) == afar
        assert "reading from afar as well ends in" in plan.explanation[0]


def test_a_shard_that_may_be_copied_moves_once_for_each_node() -> None:
    long = {"epochs": ((("a", 50), ("b", 1)),), "homes": HOMES}
    ends = {}
    for copied in ({}, {"a": "s3://bucket/a"}):
        found = problem(8)
        tour = ShardTour(**long, read_seconds={"a": 30.0}, copied=copied)  # type: ignore[arg-type]
        plan = plan_with_shards(dataclasses.replace(found, tours=dict.fromkeys(found.tours, tour)), plan_list)
        ends[bool(copied)] = schedule_of(plan).makespan_seconds
        afar = [each for each in schedule_of(plan).placements if each.shard == "a" and each.devices == ("n1:0",)]
        lasts = sorted(round(each.duration_seconds) for each in afar)
        assert lasts[:-1] == [51 if copied else 81] * (len(afar) - 1)
        assert lasts[-1] == 81
    assert ends[True] < ends[False]
    assert "copying shards once as well ends in" in plan.explanation[0]


def test_what_is_not_measured_yet_is_left_for_a_later_plan() -> None:
    found = problem(2)
    unknown = dataclasses.replace(found, families=(), options=())
    assert schedule_of(plan_with_shards(unknown, plan_list)).placements == ()
    one = dataclasses.replace(found, families=(Family(name="f", members=found.families[0].members[:1]),))
    assert {each.tasks for each in schedule_of(plan_with_shards(one, plan_list)).placements} == {("t0",)}


def test_the_slowest_link_that_was_measured_counts() -> None:
    links = tuple(
        Link(source="host", target="host", bytes_per_second=rate, between_nodes=between)
        for rate, between in ((1e9, True), (2e8, True), (1e6, False))
    )
    cluster = dataclasses.replace(Cluster.uniform(CPU, nodes=2), links=links)
    assert link_between_nodes(cluster).bytes_per_second == 2e8


def test_hopping_and_pipelines_assume_the_same_of_a_link_that_nobody_measured() -> None:
    cluster = Cluster.uniform(CPU, nodes=2)
    assert Fabric.of(cluster).bytes_per_second[1] == link_between_nodes(cluster).bytes_per_second


def weighed(*, measured: bool, urls: bool = True, **fields: object) -> tuple[Problem, Plan]:
    """One task on two shards of 30 MB each, beside what copies of it were measured to take."""
    gang = Option(
        families=("f",), technique="replicate", kind="cpu", count=2, step_seconds=(0.6,), knobs=FrozenDict({"nodes": 2})
    )
    found = problem(1, steps=100)
    tour = ShardTour(
        epochs=((("a", 100), ("b", 100)),),
        homes=HOMES,
        gradient_bytes=25_000_000,
        read_seconds=dict.fromkeys("ab", 5e-4 + 30e6 / 125e6) if urls else {},
        **fields,  # type: ignore[arg-type]
    )
    found = dataclasses.replace(
        found, tours=dict.fromkeys(found.tours, tour), options=(OPTION, gang) if measured else (OPTION,)
    )
    return found, plan_with_shards(found, plan_list)


def test_copies_on_all_nodes_at_once_are_weighed_by_the_links() -> None:
    """A step of 1 s on half of the rows, 25 MB around a ring of two, two messages of half a millisecond; and each shard
    once to the other node."""
    _, plan = weighed(measured=False)
    seconds = 200 * (1 / 2 + 25e6 / 125e6 + 2 * 5e-4) + 2 * (5e-4 + 30e6 / 125e6)
    assert f"copies on 2 nodes at once in {seconds:.1f} s" in plan.explanation[0]
    assert {each.option.technique for each in schedule_of(plan).placements} == {"hop"}
    assert plan.explanation[1] == (
        "copies on several nodes at once are not taken, since no such copies have been measured"
    )


def test_copies_that_were_measured_are_taken_where_they_end_soonest() -> None:
    found, plan = weighed(measured=True)
    check(schedule_of(plan), found.cluster)
    (placement,) = schedule_of(plan).placements
    assert (placement.option.technique, placement.shard, placement.devices) == ("replicate", "", ("n0:0", "n1:0"))
    assert placement.duration_seconds == pytest.approx(200 * 0.6 + 2 * (5e-4 + 30e6 / 125e6))
    assert plan.explanation[0].endswith("so each is trained on several nodes at once")
    assert orders_of(plan, found) == {}, "in the order of its seed"


def test_copies_that_could_not_read_the_same_batch_are_refused_with_the_reason() -> None:
    for fields, reason in (
        ({"urls": False}, "have to read the rows of the same batch, and shard 'a' cannot be read from every node"),
        ({"option": OPTION}, "some visits are under way"),
    ):
        _, plan = weighed(measured=True, **fields)  # type: ignore[arg-type]
        assert {each.option.technique for each in schedule_of(plan).placements} == {"hop"}
        assert reason in plan.explanation[1]


def test_evaluations_are_visited_between_epochs_in_any_order_and_take_what_they_are_predicted_to() -> None:
    evaluation = EvaluationTour(
        homes={"x": ("n0",), "y": ("n1",)},
        batches={"x": 2, "y": 6},
        batch_seconds={"cpu": 1.0},
        step_seconds={"cpu": 0.2},
    )
    found = problem(2)
    epoch, asked = (("a", 10), ("b", 10)), (("x", 0), ("y", 0))
    tour = ShardTour(epochs=(epoch, asked, epoch, asked), homes=HOMES, evaluation=evaluation)
    found = dataclasses.replace(found, tours=dict.fromkeys(found.tours, tour))
    plan = plan_with_shards(found, plan_list)
    check(schedule_of(plan), found.cluster)
    seconds = {(each.shard, each.devices[0], each.duration_seconds) for each in schedule_of(plan).placements}
    trained = {("a", "n0:0", 1.0 + 10 * 0.8), ("b", "n1:0", 1.0 + 10 * 0.8)}
    assert seconds == {*trained, ("x", "n0:0", 1.0 + 2.0), ("y", "n1:0", 1.0 + 6.0)}
    for task in found.tours:
        own = [each for each in schedule_of(plan).placements if each.tasks == (task,)]
        own.sort(key=lambda each: each.start_seconds)
        assert [sorted(each.shard for each in own[n : n + 2]) for n in (0, 2, 4, 6)] == [["a", "b"], ["x", "y"]] * 2
    assert {task: [sorted(epoch) for epoch in epochs] for task, epochs in orders_of(plan, found).items()} == {
        f"t{n}": [["a", "b"], ["a", "b"]] for n in range(2)
    }


def test_a_task_that_ran_out_of_memory_where_its_shard_lies_is_told_why() -> None:
    refused = Rejection(families=("f",), technique="hop", kind="cpu", count=1, reason="ran out of memory")
    found = dataclasses.replace(problem(1), rejections=(refused,))
    assert unvisitable(problem(1)) == {}
    assert unvisitable(found) == {"t0": "no option fits it on every node that has one of its shards: ran out of memory"}
    assert schedule_of(plan_with_shards(found, plan_list)).placements == ()
