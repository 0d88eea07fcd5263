"""Laws of tours: every visit once, nobody twice at a time, no better than the bound, nearly as good as the best."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.hopping import (
    OpenShop,
    ShardCopy,
    ShopDevice,
    Tour,
    check_tours,
    plan_tours,
    shop_bound,
    tour_violations,
)

from .shops import even_shop, shops, shortest_tours


@settings(max_examples=80, deadline=None)
@given(st.one_of(shops(), shops(copied=True)))
def test_every_plan_passes_the_check_and_keeps_the_bound(shop: OpenShop) -> None:
    plan = plan_tours(shop, most_visits=200)
    check_tours(plan, shop)
    assert len(plan.stays) == shop.visits
    assert plan.makespan_seconds >= plan.bound_seconds * (1 - 1e-9)


# The factor is what was found, not what is proven, so the examples are the same in every run.
@settings(max_examples=50, deadline=None, derandomize=True)
@given(shops(most_visits=5))
def test_the_best_there_is_lies_between_the_bound_and_the_plan(shop: OpenShop) -> None:
    plan, best = plan_tours(shop), shortest_tours(shop)
    assert shop_bound(shop) <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= plan.makespan_seconds <= 1.5 * best + 1e-9


def test_a_plan_is_repeatable() -> None:
    shop = even_shop(12, 4, state_seconds=0.5)
    assert plan_tours(shop) == plan_tours(shop)


@pytest.mark.parametrize("state_seconds", [0.0, 0.5])
def test_a_hundred_models_on_thirty_two_shards_are_within_three_percent_of_the_bound(state_seconds: float) -> None:
    shop = even_shop(100, 32, state_seconds=state_seconds)
    plan = plan_tours(shop)
    check_tours(plan, shop)
    assert plan.gap <= 0.03


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ordered", [False, True])
def test_sixteen_models_on_four_shards_are_within_eight_percent_of_the_bound(seed: int, ordered: bool) -> None:
    shop = even_shop(16, 4, seed=seed, state_seconds=0.5, ordered=ordered)
    plan = plan_tours(shop)
    check_tours(plan, shop)
    assert plan.gap <= 0.08


def test_an_order_that_is_asked_for_is_kept_and_one_that_is_not_is_on_record() -> None:
    asked = even_shop(6, 4, ordered=True)
    assert plan_tours(asked).orders() == {tour.task: tour.epochs for tour in asked.tours}
    free = even_shop(6, 4)
    orders = plan_tours(free).orders()
    assert {task: sorted(epochs[0]) for task, epochs in orders.items()} == {
        tour.task: ["s0", "s1", "s2", "s3"] for tour in free.tours
    }


def test_what_can_be_visited_from_afar_is_where_the_other_device_is_busy_for_long() -> None:
    where = {"s0": {"n0:0": 1.0, "n1:0": 3.0}}
    tours = (Tour(task="a", epochs=(("s0",),), visit_seconds=where),)
    for free_seconds, device in ((1.0, "n0:0"), (5.0, "n1:0")):
        devices = (ShopDevice(name="n0:0", node="n0", free_seconds=free_seconds), ShopDevice(name="n1:0", node="n1"))
        (stay,) = plan_tours(OpenShop(devices=devices, tours=tours)).stays
        assert stay.device == device


def test_a_node_copies_a_shard_once_and_a_plan_that_forgets_it_is_refused() -> None:
    where = {"s0": {"n0:0": 2.0, "n1:0": 2.0}}
    tours = tuple(
        Tour(task=f"t{n}", epochs=(("s0",),), visit_seconds=where, copied={"s0": "s3://bucket/s0"}) for n in range(8)
    )
    devices = (ShopDevice(name="n0:0", node="n0"), ShopDevice(name="n1:0", node="n1"))
    copies = {"s3://bucket/s0": ShardCopy(seconds=3.0, nodes=frozenset(["n0"]))}
    shop = OpenShop(devices=devices, tours=tours, copies=copies)
    plan = plan_tours(shop)
    check_tours(plan, shop)
    lasts = sorted(stay.duration_seconds for stay in plan.stays if stay.device == "n1:0")
    assert lasts[-1] == 5.0
    assert set(lasts[:-1]) == {2.0}
    free = dataclasses.replace(plan, stays=tuple(dataclasses.replace(s, duration_seconds=2.0) for s in plan.stays))
    assert any("must stay with shard 's0' for 5 s on 'n1:0'" in each for each in tour_violations(free, shop))


def test_the_check_names_what_is_wrong() -> None:
    shop = even_shop(3, 2, state_seconds=0.5)
    plan = plan_tours(shop)
    first, *others = plan.stays
    assert tour_violations(plan, shop) == []
    for stays, words in (
        (others, "must visit shard"),
        ((first, *plan.stays), "found 2 visits"),
        ([dataclasses.replace(stay, start_seconds=0.0) for stay in plan.stays], "must hold one visit at a time"),
        ([dataclasses.replace(stay, start_seconds=0.0) for stay in plan.stays], "before it is there"),
        ((dataclasses.replace(first, duration_seconds=0.1), *others), "must stay with shard"),
        ((dataclasses.replace(first, device="n9:0"), *others), "cannot visit shard"),
        ((dataclasses.replace(first, task="nobody"), *others), "has no tour"),
    ):
        found = tour_violations(dataclasses.replace(plan, stays=tuple(stays)), shop)
        assert any(words in each for each in found), (words, found)
    found = tour_violations(dataclasses.replace(plan, bound_seconds=1e9), shop)
    assert any("the bound must not be above" in each for each in found)
