"""What policies refuse, and what they say."""

import dataclasses
import math
from typing import Any

import pytest

from dovetail.planning.problem import Problem
from dovetail.planning.share.policies import POLICIES, example
from dovetail.vocabulary import InvalidWorkload, NoFeasiblePlan


def with_member(name: str, **changes: Any) -> Problem:
    problem = example()
    families = tuple(
        dataclasses.replace(
            family,
            members=tuple(dataclasses.replace(m, **changes) if m.task == name else m for m in family.members),
        )
        for family in problem.families
    )
    return dataclasses.replace(problem, families=families)


def with_price(price: float) -> Problem:
    problem = example()
    fast, slow = problem.cluster.kinds
    kinds = (dataclasses.replace(fast, price_per_hour=price), slow)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, kinds=kinds))


def test_two_tasks_with_one_name() -> None:
    with pytest.raises(InvalidWorkload, match="names of their own; 'b' is there more than once"):
        POLICIES["max_min_fairness"](with_member("a", task="b"))


@pytest.mark.parametrize("price", [-1.0, math.inf, math.nan])
def test_a_price_that_cannot_be(price: float) -> None:
    with pytest.raises(
        InvalidWorkload, match=r"price of kind 'fast' must be a number of at least 0, got -?(1.0|inf|nan)"
    ):
        POLICIES["spend"](with_price(price))


def test_a_missing_price() -> None:
    with pytest.raises(InvalidWorkload, match="must know a price above 0 of every kind in use; 'fast' has none"):
        POLICIES["spend_with_deadlines"](with_price(0.0))


def test_a_deadline_already_past() -> None:
    with pytest.raises(InvalidWorkload, match=r"must lie ahead; that of 'a' \(-5 s\) is already past"):
        POLICIES["spend_with_deadlines"](with_member("a", deadline_seconds=-5.0))


def test_a_deadline_out_of_reach_of_the_fastest_option() -> None:
    with pytest.raises(NoFeasiblePlan, match=r"that of 'a' \(10 s\) is too close even for a cluster of its own"):
        POLICIES["spend_with_deadlines"](with_member("a", deadline_seconds=10.0))


def test_a_limit_on_spending_that_no_deadline_survives() -> None:
    problem = dataclasses.replace(with_member("a", deadline_seconds=900.0), spend_limit_per_hour=1.0)
    with pytest.raises(NoFeasiblePlan, match=r"together for at most 1 an hour; .* reach 48% of the rate they need"):
        POLICIES["spend_with_deadlines"](problem)
    with pytest.raises(InvalidWorkload, match="limit on spending must be at least 0 an hour, got -1"):
        POLICIES["throughput"](dataclasses.replace(problem, spend_limit_per_hour=-1.0))


def test_a_limit_on_spending_that_pays_for_nobody() -> None:
    poor = dataclasses.replace(example(), spend_limit_per_hour=0.2)
    for name in ("first_come", "shortest_first"):
        with pytest.raises(NoFeasiblePlan, match=r"at least 0.5 an hour \('large' on 1 'slow'\); the limit is 0.2"):
            POLICIES[name](poor)
    # Two fifths of the time of a slow device can be had.
    assert POLICIES["max_min_fairness"](poor).value > 0
    for name in sorted(POLICIES):
        with pytest.raises(NoFeasiblePlan, match=r"must pay for some task, at least 0\.5 an hour"):
            POLICIES[name](dataclasses.replace(poor, spend_limit_per_hour=0.0))


def test_rates_of_zero_everywhere() -> None:
    problem = example()
    options = tuple(option for option in problem.options if option.families != ("small",))
    with pytest.raises(NoFeasiblePlan, match=r"a rate above 0 on some kind of \['fast', 'slow'\]; 'c' is without"):
        POLICIES["max_min_fairness"](dataclasses.replace(problem, options=options))


@pytest.mark.parametrize("changes", [{"weight": 0.0}, {"steps": 0}, {"weight": math.nan}])
def test_weights_and_steps_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidWorkload, match="must have a weight > 0 and steps left; 'a' is without"):
        POLICIES["isolated"](with_member("a", **changes))


def test_an_option_on_a_kind_that_is_not_there() -> None:
    problem = example()
    strange = dataclasses.replace(problem.options[0], kind="tpu")
    with pytest.raises(InvalidWorkload, match=r"kinds of the cluster, \['fast', 'slow'\]; found 'tpu' is not"):
        POLICIES["throughput"](dataclasses.replace(problem, options=(*problem.options, strange)))


def test_an_entity_nobody_knows() -> None:
    with pytest.raises(InvalidWorkload, match=r"task 'a' must run for an entity of its problem, one of \[\], got 'x'"):
        POLICIES["hierarchical"](with_member("a", entity="x"))
