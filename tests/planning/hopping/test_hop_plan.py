"""From problems with shards to schedules of visits."""

import dataclasses

from dovetail.planning import check, plan_list
from dovetail.planning.hopping import link_between_nodes, orders_of, plan_with_shards, unvisitable
from dovetail.planning.problem import Problem, ShardTour
from dovetail.vocabulary import Cluster, Family, Kind, Link, Member, Option, Plan, Rejection, Schedule

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
    for size_bytes, afar in ((1, True), (1 << 50, False)):
        found = problem(4)
        tour = ShardTour(**long, read_bytes={"a": size_bytes})  # type: ignore[arg-type]
        found = dataclasses.replace(found, tours=dict.fromkeys(found.tours, tour))
        plan = plan_with_shards(found, plan_list)
        nodes = {each.devices[0][:2] for each in schedule_of(plan).placements if each.shard == "a"}
        assert (nodes == {"n0", "n1"}) == afar
        assert "reading from afar as well ends in" in plan.explanation[0]


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


def test_a_task_that_ran_out_of_memory_where_its_shard_lies_is_told_why() -> None:
    refused = Rejection(families=("f",), technique="hop", kind="cpu", count=1, reason="ran out of memory")
    found = dataclasses.replace(problem(1), rejections=(refused,))
    assert unvisitable(problem(1)) == {}
    assert unvisitable(found) == {"t0": "no option fits it on every node that has one of its shards: ran out of memory"}
    assert schedule_of(plan_with_shards(found, plan_list)).placements == ()
