"""Causes that were planted are found, and nothing else; where there is none, nothing; intervals hold what they say."""

import numpy as np
import pytest

from dovetail.watch.codes import Attribute
from dovetail.watch.combinations import search_combinations
from dovetail.watch.criteria import Criteria
from dovetail.watch.ratios import RATIOS, interval_of, ratio_of

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


# Rows, those with the combination, and the rate of outliers in these and in the others.
DESIGNS = [
    (2_000, 200, 0.3, 0.05),
    (200, 20, 0.3, 0.05),
    (200, 40, 0.775, 0.01),
    (200, 40, 0.5, 0.02),
    (200, 20, 0.8, 0.2),
    (100, 20, 0.6, 0.1),
    (60, 20, 0.5, 0.1),
    (1_000, 50, 0.1, 0.01),
    (200, 40, 0.9, 0.05),
]


@pytest.mark.parametrize("kind", RATIOS)
@pytest.mark.parametrize(("rows", "inside", "rate", "elsewhere"), DESIGNS)
def test_intervals_cover_as_often_as_they_say(kind, rows, inside, rate, elsewhere):
    generator = np.random.default_rng(0)
    draws, share = 20_000, inside / rows
    # How common a combination is among outliers is of rows that are drawn; how likely they are within it, of those.
    is_drawn = kind == "prevalence"
    et = generator.binomial(rows, share, draws) if is_drawn else np.full(draws, inside)
    eo = generator.binomial(et, rate)
    outliers = eo + generator.binomial(rows - et, elsewhere)
    overall = share * rate + (1 - share) * elsewhere
    true = {
        "risk": rate / elsewhere,
        "global": rate / overall,
        "prevalence": rate / (1 - rate) * (1 - overall) / overall,
    }[kind]
    low, high = interval_of(kind, eo, et, outliers=outliers, of=rows)
    assert 0.93 <= np.mean((low <= true) & (true <= high)) <= 0.97


@pytest.mark.parametrize("kind", RATIOS)
def test_an_interval_is_the_same_alone_and_among_many(kind):
    """Few are looked for in many places at once, many in one after the other."""
    generator = np.random.default_rng(3)
    eo = generator.integers(0, 300, 600)
    et = eo + generator.integers(0, 2_000, 600)
    among = interval_of(kind, eo, et, outliers=300, of=5_000)
    for at in range(40):
        alone = interval_of(kind, eo[at], et[at], outliers=300, of=5_000)
        for one, many in zip(alone, among, strict=True):
            assert one == pytest.approx(many[at], rel=2e-4)


def test_intervals_hold_the_ratio_and_have_no_end_where_nothing_bounds_it():
    eo, et = (each.ravel() for each in np.meshgrid(np.arange(0, 31), np.arange(1, 100), indexing="ij"))
    eo, et = eo[(eo <= et) & (et - eo <= 70)], et[(eo <= et) & (et - eo <= 70)]
    for kind in RATIOS:
        low, high = interval_of(kind, eo, et, outliers=30, of=100)
        ratio = ratio_of(kind, eo, et, outliers=30, of=100)
        assert (low <= ratio * (1 + 1e-9)).all()
        assert (ratio <= high * (1 + 1e-9)).all()
        assert (low[eo == 0] == 0).all()
        assert np.isinf(high[eo == (et if kind == "prevalence" else 30)]).all() or kind == "global"
        narrow = interval_of(kind, eo, et, outliers=30, of=100, confidence=0.5)
        assert (low <= narrow[0] + 1e-9).all()
        assert (narrow[1] <= high + 1e-9).all()
