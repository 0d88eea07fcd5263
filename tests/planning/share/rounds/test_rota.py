"""Rounds: every one can be run, shares are kept over time, leases are extended, and each decision has a reason."""

import dataclasses
import itertools
import math
from collections import defaultdict

import pytest

from dovetail.planning.checker import check
from dovetail.planning.problem import Problem
from dovetail.planning.share.policies import POLICIES, example
from dovetail.planning.share.rounds import Gang, Received, Rota, Round, after, carry_over, explain, without
from dovetail.testing.policies import draw
from dovetail.vocabulary import Allocation, Cluster, Family, Kind, Member, Option, Share

ROUND = 360.0


def run(problem: Problem, allocation: Allocation, rounds: int) -> tuple[list[Round], Received]:
    rota, received, made = Rota(problem, allocation), Received(), []
    for _ in range(rounds):
        made.append(rota.next(received=received, previous=made[-1].gangs if made else (), round_seconds=ROUND))
        received = after(received, made[-1], seconds=ROUND)
    return made, received


def option(count: int = 1, *, family: str = "f", seconds: float = 1.0, **more: int) -> Option:
    return Option(families=(family,), technique="resident", kind="cpu", count=count, step_seconds=(seconds,), **more)


def one_kind(nodes: int, devices: int) -> Cluster:
    return Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=nodes, devices_per_node=devices)


def tasks(name: str, *names: str) -> Family:
    return Family(name=name, members=tuple(Member(task=task, steps=10_000) for task in names))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["max_min_fairness", "makespan", "isolated", "first_come"])
def test_every_round_passes_the_check_and_forgets_nobody(name: str, seed: int) -> None:
    problem = draw(seed)
    made, _ = run(problem, POLICIES[name](problem), rounds=8)
    everybody = sorted(member.task for family in problem.families for member in family.members)
    for each in made:
        check(each.schedule(problem), problem.cluster)
        assert sorted([task for gang in each.gangs for task in gang.tasks] + list(each.waiting)) == everybody


@pytest.mark.parametrize("seed", range(10))
def test_tasks_receive_their_shares_over_time(seed: int) -> None:
    problem = draw(seed, widest=1, packed=False)
    allocation = dataclasses.replace(POLICIES["water_filling"](problem), fills=False)
    rounds = 200
    _, received = run(problem, allocation, rounds)
    for number, share in enumerate(allocation.shares):
        (group,) = share.groups
        for task in allocation.groups[group]:
            due = share.share / len(allocation.groups[group]) * rounds
            assert received.seconds.get((number, task), 0.0) / ROUND == pytest.approx(due, abs=4)


def test_whoever_has_all_of_the_time_keeps_the_devices() -> None:
    problem = Problem(cluster=one_kind(2, 2), families=(tasks("f", "a", "b", "c"),), options=(option(),))
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=5)
    assert all(each.moved == 0 and not each.waiting for each in made)
    assert len({frozenset((gang.tasks, gang.devices) for gang in each.gangs) for each in made}) == 1


def test_turns_are_taken_and_holders_stay_a_while() -> None:
    problem = Problem(cluster=one_kind(1, 1), families=(tasks("f", "a", "b"),), options=(option(),))
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=40)
    who = [each.gangs[0].tasks[0] for each in made]
    assert 15 <= who.count("a") <= 25
    changes = sum(one != other for one, other in itertools.pairwise(who))
    assert changes < 39


def test_a_gang_goes_on_the_fullest_node_that_holds_it() -> None:
    cluster = one_kind(2, 4)
    family, wide = tasks("f", "a", "b", "c"), tasks("g", "w")
    problem = Problem(cluster=cluster, families=(family, wide), options=(option(), option(4, family="g")))
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=1)
    nodes = {gang.tasks: {device.split(":")[0] for device in gang.devices} for gang in made[0].gangs}
    assert len(nodes["w",]) == 1
    assert all(node != nodes["w",] for names, node in nodes.items() if names != ("w",))


def test_a_kind_that_is_split_up_is_placed_anew() -> None:
    problem = Problem(
        cluster=one_kind(2, 2),
        families=(tasks("f", "a", "b"), tasks("g", "w")),
        options=(option(), option(2, family="g")),
    )
    split = (Gang(("a",), problem.options[0], ("n0:0",), 0), Gang(("b",), problem.options[0], ("n1:0",), 0))
    allocation = POLICIES["max_min_fairness"](problem)
    made = Rota(problem, allocation).next(received=Received(), previous=split)
    check(made.schedule(problem), problem.cluster)
    assert made.waiting == ()
    assert made.moved == 1


def test_a_node_gives_no_more_than_it_has() -> None:
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=4, cores=4, memory_bytes=10)
    problem = Problem(cluster=cluster, families=(tasks("f", "a", "b", "c"),), options=(option(host_bytes=4, cores=1),))
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=2)
    for each in made:
        check(each.schedule(problem), cluster)
        assert len(each.gangs) == 2


def test_devices_left_over_go_to_those_who_wait_and_then_to_those_who_can_grow() -> None:
    problem = Problem(
        cluster=one_kind(1, 4),
        families=(tasks("f", "a"),),
        options=(option(), option(2, seconds=0.6), option(4, seconds=0.4)),
    )
    narrow = Allocation(groups=(("a",),), shares=(Share(option=problem.options[0], share=1.0),))
    (gang,) = Rota(problem, narrow).next(received=Received()).gangs
    assert gang.option.count == 4
    frugal = dataclasses.replace(narrow, fills=False)
    (gang,) = Rota(problem, frugal).next(received=Received()).gangs
    assert gang.option.count == 1


def test_the_running_are_left_alone() -> None:
    problem = example()
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=1)
    placement = made[0].schedule(problem).placements[0]
    rest = dataclasses.replace(
        problem,
        families=tuple(
            dataclasses.replace(f, members=tuple(m for m in f.members if m.task not in placement.tasks))
            for f in problem.families
        ),
        running=(placement,),
    )
    again, _ = run(rest, POLICIES["max_min_fairness"](rest), rounds=3)
    for each in again:
        check(each.schedule(rest), rest.cluster, running=rest.running)


def test_pairs_are_made_up_when_their_turn_comes() -> None:
    pair = Option(families=("f", "f"), technique="interleave", kind="cpu", count=1, step_seconds=(1.1, 1.1))
    family = tasks("f", "a", "b", "c", "d")
    problem = Problem(cluster=one_kind(1, 2), families=(family,), options=(option(), pair))
    allocation = POLICIES["max_min_fairness"](problem)
    made, _ = run(problem, allocation, rounds=6)
    assert all(not each.waiting and len(each.gangs) == 2 for each in made)
    assert allocation.value > 0.9


def test_what_is_behind_is_owed_after_a_new_allocation() -> None:
    problem = Problem(cluster=one_kind(1, 1), families=(tasks("f", "a", "b"),), options=(option(),))
    allocation = POLICIES["max_min_fairness"](problem)
    made, received = run(problem, allocation, rounds=1)
    first = made[0].gangs[0].tasks[0]
    other = "b" if first == "a" else "a"
    begun = carry_over(received, allocation, most_seconds=10 * ROUND)
    assert begun.owed_seconds == {other: pytest.approx(ROUND / 2, rel=1e-5)}
    made, _ = run(problem, allocation, rounds=1)
    again = Rota(problem, allocation).next(received=begun)
    assert again.gangs[0].tasks == (other,)


def test_whoever_ended_gets_no_turn() -> None:
    problem = Problem(cluster=one_kind(1, 1), families=(tasks("f", "a", "b"),), options=(option(),))
    allocation = without(POLICIES["max_min_fairness"](problem), {"a"})
    left = dataclasses.replace(problem, families=(tasks("f", "b"),))
    made, _ = run(left, allocation, rounds=3)
    assert all(each.gangs[0].tasks == ("b",) for each in made)
    nobody = without(allocation, {"b"})
    assert Rota(dataclasses.replace(problem, families=()), nobody).next(received=Received()).gangs == ()


def test_every_decision_has_a_reason() -> None:
    problem = Problem(cluster=one_kind(1, 2), families=(tasks("f", "a", "b", "c"),), options=(option(),))
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=6)
    verbs: dict[str, int] = defaultdict(int)
    for before, each in zip([Round(gangs=(), waiting=(), moved=0, seconds=ROUND), *made], made, strict=False):
        lines = explain(each, previous=before.gangs)
        assert sorted(line.task for line in lines) == ["a", "b", "c"]
        assert all(line.because for line in lines)
        for line in lines:
            verbs[line.verb] += 1
    assert {"starts", "extends", "waits"} <= verbs.keys()


def test_a_placement_does_the_steps_it_has_time_for() -> None:
    slow = dataclasses.replace(option(seconds=0.5), start_seconds=60.0)
    family = Family(name="f", members=(Member(task="a", steps=10_000), Member(task="b", steps=7)))
    problem = Problem(cluster=one_kind(1, 2), families=(family,), options=(slow,))
    made, _ = run(problem, POLICIES["max_min_fairness"](problem), rounds=1)
    steps = {p.tasks: p.steps for p in made[0].schedule(problem).placements}
    assert steps == {("a",): (600,), ("b",): (7,)}
    assert math.isclose(made[0].schedule(problem).makespan_seconds, ROUND)
