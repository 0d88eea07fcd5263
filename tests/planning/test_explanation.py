"""The sentences, with their numbers."""

import dataclasses

from dovetail.planning import Problem, explain
from dovetail.vocabulary import Cluster, Option, Rejection, Schedule

from .problems import CPU, option, placement

CLUSTER = Cluster.uniform(CPU, devices_per_node=4)


def line(chosen: Option, *others: Option, rejections: tuple[Rejection, ...] = ()) -> str:
    problem = Problem(cluster=CLUSTER, families=(), options=(chosen, *others), rejections=rejections)
    placed = dataclasses.replace(placement("mlp-a", of=chosen, seconds=chosen.seconds((10,))), steps=(10,))
    (only,) = explain(problem, Schedule(placements=(placed,)))
    return only


def test_a_faster_option_that_takes_more() -> None:
    assert line(option(1, seconds=4.2), option(2, seconds=3.0), option(4, seconds=2.5)) == (
        "mlp-a: resident on 1 × cpu, 42.0 s (measured); next best resident on 2 × cpu would take "
        "30.0 s but 60.0 device-seconds instead of 42.0"
    )


def test_a_slower_option_that_takes_less() -> None:
    assert line(option(2, seconds=3.0), option(1, seconds=4.2)) == (
        "mlp-a: resident on 2 × cpu, 30.0 s (measured); next best resident on 1 × cpu would take "
        "42.0 device-seconds instead of 60.0 but 42.0 s"
    )


def test_an_option_that_is_worse_in_both() -> None:
    predicted = dataclasses.replace(option(1, seconds=3.0), measured=False)
    assert line(predicted, option(1, kind="old", seconds=4.0)) == (
        "mlp-a: resident on 1 × cpu, 30.0 s (predicted); next best resident on 1 × old would take "
        "40.0 device-seconds instead of 30.0 and 40.0 s"
    )


def test_no_other_option_and_why() -> None:
    rejected = Rejection(families=("f",), technique="resident", kind="h100", count=1, reason="needs 61 GiB.")
    better = "; no other option that is known takes less time or fewer devices"
    assert line(option(1)).endswith(better)
    assert line(option(1), rejections=(rejected,)).endswith(
        f"{better}; resident on 1 × h100 does not fit: needs 61 GiB."
    )
    assert line(option(1), option(2, family="other")).endswith(better)


def test_lines_are_in_the_order_of_starts() -> None:
    placed = (placement("late", start=9.0, seconds=3.0), placement("b", on=("n0:1",), seconds=4.0), placement("a"))
    lines = explain(Problem(cluster=CLUSTER, families=(), options=(option(),)), Schedule(placements=placed))
    assert [each.split(":")[0] for each in lines] == ["a", "b", "late"]


def test_many_tasks_have_a_line_for_each_family() -> None:
    wide, narrow = option(2, seconds=0.5), option(1)
    placed = [placement(f"t{i}", of=narrow, start=5.0 * i, seconds=5.0) for i in range(200)]
    placed.append(placement("wide", of=wide, on=("n0:2", "n0:3"), seconds=2.5))
    problem = Problem(cluster=CLUSTER, families=(), options=(narrow, wide, option(4, seconds=0.5)))
    assert explain(problem, Schedule(placements=tuple(placed))) == (
        "t0, wide, t1 and 198 more: 200 on resident on 1 × cpu, 5.0 s each (measured); 1 on resident on 2 × cpu, "
        "2.5 s each (measured); next best resident on 4 × cpu would take 2.5 s but 2010.0 device-seconds instead of "
        "1005.0",
    )


def test_tasks_of_which_the_same_is_to_be_said_have_one_line() -> None:
    placed = tuple(placement(f"t{number}", start=5.0 * number) for number in range(5))
    (only,) = explain(Problem(cluster=CLUSTER, families=(), options=(option(),)), Schedule(placements=placed))
    assert only.startswith("t0, t1, t2 and 2 more: resident on 1 × cpu, 5.0 s (measured); no other option")


def test_a_gang_is_compared_with_its_tasks_each_by_itself() -> None:
    alone = option(1, seconds=2.0)
    fused = dataclasses.replace(alone, families=("f", "f"), technique="fuse", step_seconds=(1.0, 1.0))
    placed = dataclasses.replace(placement("a", of=fused, seconds=10.0), tasks=("a", "b"), steps=(10, 10))
    problem = Problem(cluster=CLUSTER, families=(), options=(fused, alone))
    (only,) = explain(problem, Schedule(placements=(placed,)))
    assert only.startswith("a, b: fuse on 1 × cpu")
    assert only.endswith("; each by itself would take 40.0 device-seconds instead of 10.0"), "another option fits"


def test_what_an_approximation_bought_of_the_update_is_said_where_it_is_known() -> None:
    exact = dataclasses.replace(option(1, seconds=1.13), update_seconds=1.05)
    coded = dataclasses.replace(option(1, seconds=0.8), knobs={"approximate": "state-8bit"}, update_seconds=0.63)
    assert "state-8bit: update 1.05 → 0.63 s, step 1.13 → 0.8 s; " in line(coded, exact)
    assert "state-8bit: step 1.13 → 0.8 s; " in line(coded, option(1, seconds=1.13))


def test_what_an_approximation_bought_is_said() -> None:
    coded = dataclasses.replace(option(1, seconds=0.8), knobs={"approximate": "state-8bit"})
    for others, said in (
        ((option(1, seconds=1.13),), "step 1.13 → 0.8 s"),
        ((), "the same with exact steps does not fit"),
    ):
        found = line(coded, *others)
        assert found.startswith("mlp-a: resident with state-8bit on 1 × cpu, 8.0 s (measured); ")
        assert f"state-8bit: {said}; " in found
