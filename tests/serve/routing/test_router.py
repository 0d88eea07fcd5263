"""A router asks the cheap model where it will do, keeps to budgets, and falls back to the best single model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.serve.routing import BudgetKeeper, route
from dovetail.serve.routing.decisions import within_budget
from dovetail.vocabulary import DovetailError
from tests.serve.routing.outcomes import WORDS, table_of

EASY, HARD = f"{WORDS['easy']} 7", f"{WORDS['hard']} 7"


def embed(texts):
    return [[float("theorem" in text), len(text) / 1000] for text in texts]


@pytest.mark.parametrize(
    ("estimator", "domains"), [("text", False), ("text", True), ("neighbours", False), ("domains", True)]
)
def test_every_estimator_finds_what_is_easy(estimator, domains):
    router = route(table_of(domains=domains, noise=0.05), estimator=estimator, embed=embed)
    known = ["easy", "hard"] if domains else None
    assert router.best_single == "large"
    assert router.choose([EASY, HARD], known, money=0.5) == ["small", "large"]
    assert router.choose([EASY, HARD], known, money=100.0) == ["small", "small"]
    assert router.choose_above([EASY, HARD], known, threshold=0.4) == ["small", "large"]


def test_a_stranger_goes_to_the_best_single_model():
    router = route(table_of())
    assert router.choose(["zażółć gęślą jaźń"], money=0.5) == ["large"]
    with_domains = route(table_of(domains=True))
    # Two domains, each unlike the other: learning from one says nothing good about the other.
    assert with_domains.choose([EASY], ["cooking"], money=0.5) == ["large"]


@pytest.mark.parametrize(
    ("queries", "domains", "message"),
    [
        ([], None, r"queries must be a list of texts, one or more; got \[\]"),
        ("text", None, r"one or more; got 'text'. Put a single one into \[\]"),
        (["a", "b"], ["easy"], "there must be a domain for each query; got 2 queries and 1 domains"),
        (["a"], "easy", "there must be a domain for each query; got 1 queries and 'easy'"),
    ],
)
def test_queries_that_cannot_be_are_refused(queries, domains, message):
    with pytest.raises(DovetailError, match=message):
        route(table_of(domains=True)).choose(queries, domains)


def test_without_anything_to_learn_all_goes_to_the_best_single_model():
    table = table_of(noise=0.0)
    generator = np.random.default_rng(0)
    table.quality[:] = generator.random(table.quality.shape) < [0.6, 0.8]
    router = route(table)
    assert set(router.choose(table.queries)) == {router.best_single}


def test_a_budget_is_kept_for_many_queries_together():
    router = route(table_of(noise=0.05))
    table = table_of(seed=1)
    for budget in (0.02, 0.1, 0.3):
        models = router.spread(table.queries, budget=budget)
        assert np.mean([router.price[router.models.index(model)] for model in models]) <= budget + 1e-9
    with pytest.raises(DovetailError, match=r"must pay for the cheapest model, which takes 0.01 a query; got 0.001"):
        router.spread(table.queries, budget=0.001)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(2, 4), st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_no_choice_within_the_budget_is_better_than_the_program(count, models, seed, part):
    generator = np.random.default_rng(seed)
    quality, price = generator.random((2, count, models))
    least, most = price.min(axis=1).mean(), price.max(axis=1).mean()
    budget = least + part * (most - least) + 1e-9
    found = within_budget(quality, price, budget=budget)
    assert (found.shares * price).sum() <= budget * count + 1e-6
    assert found.shares.sum(axis=1) == pytest.approx(np.ones(count))
    value = (found.shares * quality).sum()
    for _ in range(50):
        chosen = generator.integers(0, models, count)
        if price[np.arange(count), chosen].mean() <= budget:
            assert quality[np.arange(count), chosen].sum() <= value + 1e-6
    # The dual prices money rightly: at it, no query has a better model than those with a share.
    worth = quality - found.money * price
    assert (found.shares * worth).sum() == pytest.approx(worth.max(axis=1).sum(), abs=1e-6)


def test_a_stream_keeps_to_its_budget_whatever_prices_do():
    router = route(table_of(noise=0.05))
    keeper, spent = BudgetKeeper(router, budget=0.1), 0.0
    queries = [EASY, HARD] * 1500
    estimate = router.estimate([EASY, HARD])
    generator = np.random.default_rng(0)
    for number, _ in enumerate(queries):
        row = number % 2
        one = type(estimate)(quality=estimate.quality[[row]], error=estimate.error[[row]])
        chosen = router.choose_estimated(one, money=keeper.money())[0]
        price = router.price[chosen] * 1.5 * generator.uniform(0.5, 1.5)  # half as much again as the table says
        keeper.record_spend(price)
        spent += price
    assert spent / len(queries) == pytest.approx(0.1, rel=0.05)


def test_after_an_answer_another_model_is_asked_only_where_that_pays():
    router = route(table_of(120, answers=True))
    assert router.judged_models == (0,)
    assert router.first(HARD, money=0.5).ask in ("small", "large")
    assert router.after(EASY, {"small": "so it is 7"}, money=0.5).give == "small"
    assert router.after(HARD, {"small": "I do not know"}, money=0.5).ask == "large"
    assert router.after(HARD, {"small": "I do not know"}, money=100.0).give == "small"
    assert router.after(HARD, {"small": "I do not know", "large": "so it is 7"}, money=0.5).give == "large"
    with pytest.raises(DovetailError, match="one of the table's, small, large; got 'huge'"):
        router.after(HARD, {"huge": "yes"})


def test_a_verifier_decides_where_words_do_not():
    table = table_of(120, answers=True)
    plain = tuple(("so it is", answers[1]) for answers in table.answers)
    right = {query: float(quality[0]) for query, quality in zip(table.queries, table.quality, strict=True)}
    object.__setattr__(table, "answers", plain)
    object.__setattr__(table, "queries", tuple(f"question {number}" for number in range(len(table))))
    right = dict(zip(table.queries, right.values(), strict=True))
    router = route(table, verifiers=[lambda query, answer: right[query]])
    assert router.after("question 4", {"small": "so it is"}, money=0.5).give == "small"
    assert router.after("question 5", {"small": "so it is"}, money=0.5).ask == "large"
    with pytest.raises(DovetailError, match="finite number"):
        route(table, verifiers=[lambda query, answer: float("nan")])


def test_an_unknown_estimator_and_a_missing_embedder_are_refused():
    with pytest.raises(DovetailError, match="one of text, neighbours, domains, got 'magic'"):
        route(table_of(), estimator="magic")
    with pytest.raises(DovetailError, match="give embed="):
        route(table_of(), estimator="neighbours")
    with pytest.raises(DovetailError, match="need a column 'domain'"):
        route(table_of(), estimator="domains")
    with pytest.raises(DovetailError, match="a row of finite numbers for each text"):
        route(table_of(), estimator="neighbours", embed=lambda texts: [1.0])
