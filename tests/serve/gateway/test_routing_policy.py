"""Traffic moves with load before anything is full, and without outcomes a budget decides."""

import httpx
import numpy as np
import pytest

from dovetail.serve.gateway.models_file import UpstreamModel
from dovetail.serve.gateway.routing_policy import RoutingPolicy, is_ready, retry_after
from dovetail.serve.gateway.upstream import Upstream
from dovetail.serve.routing import Router
from tests.serve.routing.outcomes import WORDS, table_of

MODELS = [
    UpstreamModel(name=name, url="http://127.0.0.1:9", model=name, price_in=price, price_out=price, at_once=10)
    for name, price in (("small", 10.0), ("large", 300.0))
]


def upstreams():
    client = httpx.AsyncClient()
    return {model.name: Upstream(model, client) for model in MODELS}


def test_a_busy_model_is_put_back_before_it_is_full():
    policy, models = RoutingPolicy(MODELS, outcomes=table_of(noise=0.25), money=0.1), upstreams()
    hard = f"{WORDS['hard']} 7"
    chosen = []
    for models["large"].running in range(11):
        chosen.append(policy.order(hard, None, models)[0])
    assert chosen[0] == "large"
    assert chosen[-1] == "small"
    moved = chosen.index("small")
    assert moved < 10
    assert chosen == ["large"] * moved + ["small"] * (11 - moved)
    assert is_ready(models["large"]) is False


def test_without_outcomes_the_order_is_the_files_and_a_budget_buys_the_dearest_it_can():
    assert RoutingPolicy(MODELS).order("q", None, upstreams()) == ["small", "large"]
    expected = MODELS[1].price(500, 250)
    policy = RoutingPolicy(MODELS, budget=expected / 2)
    chosen, models = [], upstreams()
    for _ in range(200):
        name = policy.order("q", None, models)[0]
        price = MODELS[0 if name == "small" else 1].price(500, 250)
        policy.record_spend(price, by_model={name: price})
        chosen.append(price)
    assert sum(chosen) <= 200 * expected / 2 + 1e-9
    assert sum(chosen) == pytest.approx(200 * expected / 2, rel=0.02)


def test_how_long_to_wait_is_that_of_who_is_free_first():
    models = upstreams()
    models["small"].running = 10
    for _ in range(5):
        models["large"].breaker.record_failure()
    assert retry_after(list(models.values()), 3.2) == 4


def test_the_busier_a_model_the_worse_an_answer_must_be_to_go_on_to_it():
    router = Router(table_of(noise=0.25))
    answers, hard = {"small": "it may be 7"}, f"{WORDS['hard']} 7"
    steps = [router.after(hard, answers, handicap=np.array([0.0, each])) for each in (0.0, 1.0)]
    assert [step.ask for step in steps] == ["large", None]
