"""Counts of combinations lie within the bounds that are given for them, whatever came and however it was cut."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.watch.streams.heavy_hitters import HeavyHitters
from dovetail.watch.streams.slot_table import SlotTable

rows = st.lists(st.tuples(*(st.integers(0, 5) for _ in range(3))), max_size=120)


def true_counts(table, order):
    counts = Counter()
    for row in table:
        for size in range(1, order + 1):
            counts.update(frozenset((name, row[name]) for name in subset) for subset in combinations(range(3), size))
    return counts


def columns(table):
    return [np.array([row[number] for row in table], dtype=np.int64) for number in range(3)]


@settings(deadline=None, max_examples=60)
@given(rows, st.integers(1, 40), st.integers(1, 40))
def test_what_is_counted_is_off_by_no_more_than_it_says(table, capacity, cut):
    hitters = HeavyHitters(["0", "1", "2"], capacity=capacity, order=3)
    for start in range(0, len(table), cut):
        hitters.update(columns(table[start : start + cut]))
    truth = true_counts(table, 3)
    found = {
        frozenset((int(name), value) for name, value in each.values.items()): each for each in hitters.combinations()
    }
    for items, each in found.items():
        assert each.events <= truth[items] <= each.events + each.missed + 1e-9
    for items, count in truth.items():
        # A combination misses what its own table and those of its parts may miss: one for each attribute and table.
        if count > (2 * len(items) - 1) * len(table) / (capacity + 1):
            assert items in found


@settings(deadline=None, max_examples=40)
@given(rows, st.integers(1, 40))
def test_with_room_for_all_counts_are_exact_however_batches_are_cut(table, cut):
    hitters = HeavyHitters(["0", "1", "2"], capacity=300, order=3)
    for start in range(0, len(table), cut):
        hitters.update(columns(table[start : start + cut]))
    found = {
        frozenset((int(name), value) for name, value in each.values.items()): each for each in hitters.combinations()
    }
    assert {items: each.events for items, each in found.items()} == dict(true_counts(table, 3))
    assert all(each.missed == 0 for each in found.values())


@given(st.lists(st.lists(st.integers(1, 50), max_size=30), max_size=8), st.integers(1, 12))
def test_a_table_holds_whatever_weighs_more_than_its_share(batches, capacity):
    table, slot_of, total, truth = SlotTable(capacity=capacity), {}, 0, Counter()
    for batch in batches:
        counts = Counter(batch)
        known = np.array([slot_of.get(item, 0) for item in counts], dtype=np.intp)
        weights = np.array(list(counts.values()), dtype=float)
        slots, freed = table.merge(known, weights=weights, events=weights, outliers=0 * weights)
        slot_of = {item: slot for item, slot in slot_of.items() if slot not in freed.tolist()}
        slot_of |= {item: int(slot) for item, slot in zip(counts, slots, strict=True) if slot}
        truth.update(counts)
        total += len(batch)
    assert len(slot_of) == len(table.held()) <= capacity
    assert table.taken <= total / (capacity + 1) + 1e-9
    assert all(item in slot_of for item, count in truth.items() if count > total / (capacity + 1))


def test_small_and_large_batches_count_alike():
    draws = np.random.default_rng(0)
    table = [draws.integers(0, 40, 20_000) for _ in range(3)]
    whole, parts = (HeavyHitters(list("abc"), capacity=2_000, order=2) for _ in range(2))
    whole.update(table)
    for start in range(0, 20_000, 50):  # far fewer rows than addresses: counted by sorting
        parts.update([column[start : start + 50] for column in table])
    assert whole.combinations() == parts.combinations()


def test_what_came_long_ago_counts_less():
    hitters = HeavyHitters(["a"], capacity=10, order=1, half_life=100.0)
    hitters.update([np.full(100, 1)])
    hitters.update([np.full(100, 2)])
    assert {each.values["a"]: each.events for each in hitters.combinations()} == {2: 100.0, 1: 50.0}
    for _ in range(2_000):
        hitters.update([np.full(1_000, 3)])
    assert hitters.combinations()[0].values == {"a": 3}
    assert hitters.combinations()[0].events == pytest.approx(1000 / (1 - 0.5**10), rel=1e-6)


def test_a_combination_of_few_events_and_many_outliers_is_counted():
    draws = np.random.default_rng(0)
    names = draws.integers(0, 5_000, 100_000)
    names[:200] = 7
    outliers = np.zeros(100_000, dtype=bool)
    outliers[:200] = True
    hitters = HeavyHitters(["name"], capacity=50, order=1, outlier_share=0.01)
    hitters.update([names], outliers)
    found = max(hitters.combinations(), key=lambda each: each.outliers)
    assert (found.values, found.outliers) == ({"name": 7}, 200.0)
    assert len(hitters.combinations()) <= 50


def test_a_million_values_take_no_more_room_than_a_thousand_and_it_is_said():
    monitor = dt.Monitor(metrics=["m"], attributes=["user", "region"], capacity=100)
    users = np.arange(1_000_000)
    monitor.update({"m": np.zeros(1_000_000), "user": users, "region": np.where(users % 3 == 0, "eu", "us")})
    assert monitor.notes() == [
        "'user' has more values than are counted (100), none of them frequent; it explains nothing"
    ]
    assert [each.values for each in monitor.frequent()] == [{"region": "us"}, {"region": "eu"}]


def test_text_beside_numbers_is_refused():
    monitor = dt.Monitor(metrics=["m"], attributes=["region"])
    with pytest.raises(dt.DovetailError, match="of one type; 'region' has numbers and text, such as 'eu'"):
        monitor.update({"m": [1.0, 2.0], "region": ["eu", 3]})
    monitor.update({"m": [1.0], "region": ["eu"]})
    with pytest.raises(
        dt.DovetailError, match=r"'region' has numbers and text, such as 4\. Turn all of them into text"
    ):
        monitor.update({"m": [1.0], "region": [4]})


def test_nulls_are_in_no_combination():
    monitor = dt.Monitor(metrics=["m"], attributes=["region", "version"])
    monitor.update({"m": [1.0, 2.0, 3.0], "region": ["eu", None, "eu"], "version": [1.0, 1.0, float("nan")]})
    assert monitor.notes() == [
        "1 events have no 'region'; they are in no combination of it",
        "1 events have no 'version'; they are in no combination of it",
    ]
    assert [(each.values, each.events) for each in monitor.frequent("region", "version")] == [
        ({"region": "eu", "version": 1.0}, 1.0)
    ]
