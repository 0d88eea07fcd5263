"""What is counted is what brute force counts, by the kernel as by Python, whatever the table."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.watch import bitmaps
from dovetail.watch.bitmaps import KernelCounter, PythonCounter
from dovetail.watch.codes import Attribute, encode_range
from dovetail.watch.combinations import search_combinations
from dovetail.watch.criteria import Criteria
from dovetail.watch.items import make_items
from dovetail.watch.levels import find_candidates, sort_sets
from dovetail.watch.ratios import RATIOS, most_rows, ratio_of


def table(seed, rows, cardinalities=(2, 3, 4)):
    generator = np.random.default_rng(seed)
    attributes = [
        Attribute(f"a{number}", generator.integers(0, count, rows).astype(np.uint8), range(count))
        for number, count in enumerate(cardinalities)
    ]
    outliers = generator.random(rows) < 0.2
    outliers[0], outliers[-1] = True, False
    return attributes, outliers


def brute_force(attributes, outliers, criteria):
    """Every combination of up to three values that passes, with its counts, and none with a part that passes."""
    found = {}
    for size in range(1, (criteria.order or len(attributes)) + 1):
        for chosen in itertools.combinations(range(len(attributes)), size):
            for values in itertools.product(*(attributes[place].values for place in chosen)):
                rows = np.logical_and.reduce(
                    [attributes[p].codes == value for p, value in zip(chosen, values, strict=True)]
                )
                eo, et = int((rows & outliers).sum()), int(rows.sum())
                whole = {"outliers": int(outliers.sum()), "of": len(outliers)}
                key = frozenset(zip(chosen, values, strict=True))
                if eo < criteria.least_support * whole["outliers"] or any(part < key for part in found):
                    continue
                if eo and ratio_of(criteria.ratio, eo, et, **whole) >= criteria.least_ratio:
                    found[key] = (eo, et)
    return {tuple((f"a{p}", f"= {v}") for p, v in sorted(key)): counts for key, counts in found.items()}


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(60, 300),
    ratio=st.sampled_from(RATIOS),
    least_ratio=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
    order=st.integers(1, 3),
)
def test_minimal_is_what_brute_force_finds(seed, rows, ratio, least_ratio, order):
    attributes, outliers = table(seed, rows)
    criteria = Criteria(show="minimal", ratio=ratio, least_ratio=least_ratio, least_support=0.1, order=order)
    found = search_combinations(attributes, outliers, criteria)
    counts = {each.values: (each.outlier_count, each.total_count) for each in found.found}
    assert counts == brute_force(attributes, outliers, criteria)


@pytest.mark.skipif(bitmaps._kernel() is None, reason="needs a C compiler")
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), rows=st.sampled_from([2, 63, 64, 65, 1000, 40_000]))
def test_the_kernel_counts_what_python_counts(seed, rows):
    attributes, outliers = table(seed, rows)
    attributes[0] = dataclasses.replace(attributes[0], codes=np.sort(attributes[0].codes))  # long runs of one code
    measure = np.random.default_rng(seed).normal(size=rows)
    attributes.append(encode_range("m", measure))
    among = [np.bincount(each.codes[outliers], minlength=len(each.values)) for each in attributes]
    totals = [bitmaps.count_codes(each.codes, len(each.values)) for each in attributes]
    items = make_items(attributes, among, totals, least=1)
    exclude = np.zeros((4, 4), dtype=np.uint8)
    exclude[0, 1] = exclude[1, 0] = 1
    their_codes = [each.codes[outliers] for each in attributes]
    counters = [KernelCounter(items, rows, exclude, their_codes), PythonCounter(items, outliers, exclude)]
    found = [find_candidates(items, each, least=max(1, rows // 50), order=3, rows=rows) for each in counters]
    assert np.array_equal(found[0].sets, found[1].sets)
    assert np.array_equal(found[0].outliers, found[1].outliers)
    sets = found[0].sets[sort_sets(found[0].sets)][:500]
    counts = [each.count(sets) for each in counters]
    assert np.array_equal(*counts)
    assert np.array_equal(*(each.count_outliers(sets) for each in counters))
    assert np.array_equal(*(each.mark(sets[:20]) for each in counters))
    limited = counters[0].count(sets, counts[0] // 2)
    assert ((limited == counts[0]) | (limited > counts[0] // 2)).all()


@pytest.mark.skipif(bitmaps._kernel() is None, reason="needs a C compiler")
@pytest.mark.parametrize("values", [1, 3, 40, 41, 256, 300, 70_000])
@pytest.mark.parametrize("rows", [1, 511, 512, 641, 40_000])
def test_codes_are_counted_however_many_there_are_and_however_they_lie(values, rows):
    width = np.uint8 if values <= 256 else np.uint16 if values <= 1 << 16 else np.uint32
    codes = np.random.default_rng(values).integers(0, values, rows).astype(width)
    for each in (codes, np.sort(codes), np.concatenate([codes, np.zeros(700, width), codes])):
        assert np.array_equal(bitmaps.count_codes(each, values), np.bincount(each, minlength=values))


@given(
    eo=st.integers(1, 50), et=st.integers(0, 300), others=st.integers(0, 50), rest=st.integers(1, 500),
    kind=st.sampled_from(RATIOS), least=st.floats(0.1, 20),
)  # fmt: skip
def test_every_ratio_falls_as_rows_grow(eo, et, others, rest, kind, least):
    et, whole = eo + et, {"outliers": eo + others, "of": eo + et + others + rest}
    most = float(most_rows(kind, eo, least, **whole))
    if et < whole["of"] and abs(most - et) > 1e-6:
        assert (float(ratio_of(kind, eo, et, **whole)) >= least) == (et <= most)


def test_more_attributes_than_the_work_allows_are_said(monkeypatch):
    from dovetail.watch import levels

    monkeypatch.setattr(levels, "_WORK", 0.0)
    attributes, outliers = table(1, 4000, (4, 4, 4, 4, 4, 4, 4, 4, 4, 4))
    monkeypatch.setattr(levels, "_MOST_SETS", 500)
    found = search_combinations(attributes, outliers, Criteria(least_support=0.001))
    assert found.order == 1
    assert "combinations of more than 1 attributes were not looked at" in found.notes[0]


def test_of_what_determines_another_no_combination_has_both():
    generator = np.random.default_rng(3)
    city = generator.integers(0, 12, 5000)
    attributes = [
        Attribute("city", city.astype(np.uint8), range(12)),
        Attribute("country", (city // 4).astype(np.uint8), range(3)),
    ]
    found = search_combinations(attributes, city == 5, Criteria(show="growing"))
    assert [each.combination for each in found.found] == ["city = 5", "country = 1"]
    short = search_combinations(attributes, city == 5, Criteria())
    assert [each.combination for each in short.found] == ["city = 5"]
