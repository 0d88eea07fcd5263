"""Causes that were planted are found, and nothing else; where there is none, nothing; intervals hold what they say."""

import numpy as np
import pytest

from dovetail.watch.codes import Attribute
from dovetail.watch.combinations import search_combinations
from dovetail.watch.criteria import Criteria
from dovetail.watch.ratios import RATIOS, interval_of

CARDINALITIES = (2, 3, 5, 10, 40, 200)
CAUSES = {
    "one": [{2: 1}],
    "two": [{1: 0, 3: 2}],
    "three": [{0: 1, 1: 2, 2: 3}],
    "each order": [{3: 4}, {1: 1, 2: 2}, {0: 0, 1: 0, 2: 0}],
}


def draw(generator, rows, cardinalities=CARDINALITIES):
    columns = [generator.zipf(1.5, rows) % count for count in cardinalities]
    return [
        Attribute(f"a{number}", column.astype(np.uint8), range(count))
        for number, (column, count) in enumerate(zip(columns, cardinalities, strict=True))
    ]


def plant(attributes, causes, *, wrong=0.0, generator=None):
    marked = np.zeros(len(attributes[0].codes), dtype=bool)
    for cause in causes:
        marked |= np.logical_and.reduce([attributes[place].codes == value for place, value in cause.items()])
    return marked ^ (generator.random(len(marked)) < wrong) if wrong else marked


def named(cause):
    return tuple((f"a{place}", f"= {value}") for place, value in sorted(cause.items()))


def scored(found, causes):
    names, wanted = {each.values for each in found.found}, {named(cause) for cause in causes}
    return 2 * len(names & wanted) / (len(names) + len(wanted))


@pytest.mark.parametrize("causes", CAUSES.values(), ids=CAUSES)
@pytest.mark.parametrize("seed", range(3))
def test_planted_causes_are_all_that_is_found(causes, seed):
    attributes = draw(np.random.default_rng(seed), 20_000)
    found = search_combinations(attributes, plant(attributes, causes), Criteria(least_support=0.02))
    assert scored(found, causes) == 1


@pytest.mark.parametrize("causes", CAUSES.values(), ids=CAUSES)
def test_planted_causes_are_found_with_a_fifth_of_wrong_labels(causes):
    scores = []
    for seed in range(4):
        generator = np.random.default_rng(seed)
        attributes = draw(generator, 40_000)
        outliers = plant(attributes, causes, wrong=0.2, generator=generator)
        scores.append(scored(search_combinations(attributes, outliers, Criteria(least_support=0.005, order=4)), causes))
    assert np.mean(scores) >= 0.9


def test_where_nothing_is_behind_it_nothing_is_found():
    draws, reports = 400, 0
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        attributes = draw(generator, 400, (2, 3, 5, 10))
        measure = Attribute("m", generator.integers(0, 6, 400).astype(np.uint8), [(n, n) for n in range(6)], bins=6)
        outliers = generator.random(400) < 0.15
        criteria = Criteria(least_ratio=1.01, order=3)
        reports += bool(search_combinations([*attributes, measure], outliers, criteria).found)
    assert reports <= 0.05 * draws


@pytest.mark.parametrize("kind", RATIOS)
def test_intervals_cover_as_often_as_they_say(kind):
    generator = np.random.default_rng(0)
    draws, rows, inside = 20_000, 2_000, 200
    rates = 0.3, 0.05
    eo = generator.binomial(inside, rates[0], draws)
    outliers = eo + generator.binomial(rows - inside, rates[1], draws)
    true = rates[0] / rates[1]
    share = inside / rows
    overall = share * rates[0] + (1 - share) * rates[1]
    if kind == "global":
        true = rates[0] / overall
    elif kind == "prevalence":
        true = rates[0] / (1 - rates[0]) * (1 - overall) / overall
    low, high = interval_of(kind, eo, np.full(draws, inside), outliers=outliers, of=rows)
    assert 0.93 <= np.mean((low <= true) & (true <= high)) <= 0.97
