"""Who changed a mean or a sum is named, with intervals that hold, and nobody where nothing changed."""

import math

import numpy as np
import pandas as pd
import pytest

import dovetail as dt
from dovetail.watch.criteria import Criteria
from dovetail.watch.explain import explain_table
from dovetail.watch.measure_shifts import ratio_interval
from dovetail.watch.tables import TableReader


def two_windows(draws, rows=4_000, *, factor=1.0, more=0.0):
    """Rows of two weeks; in the second, those of region 1 and version 2 have another mean, or come more often."""
    table = {"region": draws.integers(0, 4, rows), "version": draws.integers(0, 4, rows), "week": np.arange(rows) % 2}
    late = table["week"] == 1
    moved = late & (draws.random(rows) < more)
    table["region"][moved], table["version"][moved] = 1, 2
    there = late & (table["region"] == 1) & (table["version"] == 2)
    return table | {"seconds": draws.gamma(2.0, size=rows) * np.where(there, factor, 1.0)}


def found_in(table, ratio="mean_shift", **settings):
    criteria = Criteria(ratio=ratio, least_ratio=1.0, **settings)
    return explain_table(TableReader(table), outliers="week == 1", measure="seconds", criteria=criteria)


@pytest.mark.parametrize("kind", [dict, pd.DataFrame])
def test_who_changed_the_mean_is_named_alone(kind):
    found = dt.explain(
        kind(two_windows(np.random.default_rng(0), factor=2.0)),
        outliers="week == 1",
        measure="seconds",
        ratio="mean_shift",
    )
    assert list(found["combination"]) == ["region = 1 and version = 2"]
    assert found["low"][0] < 2.0 < found["high"][0]
    assert found["mean_shift_ratio"][0] == pytest.approx(found["after"][0] / found["before"][0])


def test_who_fell_is_named_too():
    found = found_in(two_windows(np.random.default_rng(1), factor=0.4)).found
    assert [each.combination for each in found] == ["region = 1 and version = 2"]
    assert found[0].high < 1.0


def test_who_came_more_often_changed_the_sum_and_not_the_mean():
    table = two_windows(np.random.default_rng(2), more=0.15)
    named = [each.combination for each in found_in(table, "sum_shift").found]
    assert named[0] == "region = 1 and version = 2"
    assert found_in(table).found == ()


def wide(attributes, rows):
    """Rows of two weeks; in the second, those with 1 in the first four attributes have three times the mean."""
    draws = np.random.default_rng(0)
    table = {f"a{number}": draws.integers(0, 3, rows) for number in range(attributes)} | {"week": np.arange(rows) % 2}
    there = np.all([table[f"a{number}"] == 1 for number in range(4)], axis=0) & (table["week"] == 1)
    return table | {"seconds": draws.gamma(2.0, size=rows) * np.where(there, 3.0, 1.0)}


def test_combinations_are_of_as_many_attributes_as_the_work_allows():
    found = found_in(wide(5, 20_000), least_support=0.002)
    assert [each.combination for each in found.found] == ["a0 = 1 and a1 = 1 and a2 = 1 and a3 = 1"]
    assert not found.notes
    (note,) = found_in(wide(9, 80_000), least_support=0.05).notes
    assert note.startswith("combinations of more than 3 attributes were not looked at: there are too many.")


def test_where_all_changed_all_rows_are_named():
    table = two_windows(np.random.default_rng(3))
    table["seconds"] = table["seconds"] * np.where(table["week"] == 1, 1.5, 1.0)
    (found,) = found_in(table).found
    assert (found.combination, found.values) == ("all rows", ())
    assert found.change == pytest.approx(found.after - found.before)


def test_two_changes_are_named_each_apart_from_the_other():
    table = two_windows(np.random.default_rng(14), 8_000, factor=2.5)
    table["seconds"] = table["seconds"] * np.where((table["week"] == 1) & (table["version"] == 0), 0.6, 1.0)
    assert {each.combination for each in found_in(table).found} == {"region = 1 and version = 2", "version = 0"}


def test_changes_through_those_named_add_up():
    found = found_in(two_windows(np.random.default_rng(5), factor=3.0), "sum_shift")
    assert found.found[0].change == pytest.approx(found.found[0].after - found.found[0].before)
    assert found.lines()[0].startswith("region = 1 and version = 2: the sum of seconds ")


@pytest.mark.parametrize("ratio", ["mean_shift", "sum_shift"])
def test_where_nothing_changed_hardly_anything_is_found(ratio):
    draws = np.random.default_rng(6)
    assert sum(bool(found_in(two_windows(draws, 1_000), ratio).found) for _ in range(100)) <= 9  # 5 expected at most


def test_intervals_hold_the_true_ratio_19_times_in_20():
    draws, held = np.random.default_rng(7), 0
    for _ in range(1_000):
        top, bottom = draws.gamma(2.0, size=80) * 1.5, draws.gamma(2.0, size=120)
        low, high = ratio_interval(
            top.mean(), bottom.mean(), top.var(ddof=1) / 80, bottom.var(ddof=1) / 120, confidence=0.95
        )
        held += low <= 1.5 <= high
    assert 0.93 <= held / 1_000 <= 0.97


def test_a_mean_that_may_be_0_gives_no_bounds():
    assert ratio_interval(1.0, 0.1, 0.1, 0.1, confidence=0.95) == (-math.inf, math.inf)


def test_far_from_0_a_small_change_is_seen():
    table = two_windows(np.random.default_rng(8), factor=2.0)
    table["seconds"] = 1e9 + table["seconds"]
    assert found_in(table).found[0].combination == "region = 1 and version = 2"


def test_ranges_of_a_measure_are_attributes():
    table = two_windows(np.random.default_rng(9))
    load = np.random.default_rng(10).random(4_000)
    table |= {"load": load, "seconds": table["seconds"] + 2.0 * ((table["week"] == 1) & (load > 0.9))}
    assert found_in(table).found[0].values[0][0] == "load"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"measure": "seconds"}, "a measure must come with a ratio of mean_shift or sum_shift, and these with a"),
        ({"ratio": "sum_shift"}, "a measure must come with a ratio of mean_shift or sum_shift, and these with a"),
        ({"measure": "secnds", "ratio": "sum_shift"}, "a measure must be a column of the table, got 'secnds'; did you"),
        ({"measure": "name", "ratio": "sum_shift"}, "a measure must be numbers; 'name' has 'x' among them."),
        ({"measure": "empty", "ratio": "mean_shift"}, "the current window must have at least 20 rows with a finite"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(settings, said):
    table = two_windows(np.random.default_rng(0)) | {"name": ["x"] * 4_000, "empty": np.full(4_000, np.nan)}
    with pytest.raises(dt.DovetailError) as refused:
        dt.explain(table, outliers="week == 1", on=["region"], **settings)
    assert said in str(refused.value)


def test_infinite_measures_are_left_out_and_said():
    table = two_windows(np.random.default_rng(0), factor=2.0)
    table["seconds"][:7] = np.inf
    with pytest.warns(UserWarning, match="'seconds' is missing or infinite in 7 rows, which are left out"):
        found = dt.explain(table, outliers="week == 1", measure="seconds", ratio="mean_shift")
    assert found["combination"] == ["region = 1 and version = 2"]


def test_more_sets_of_attributes_than_there_is_room_for_are_said(monkeypatch):
    from dovetail.watch import measure_shifts

    monkeypatch.setattr(measure_shifts, "_MOST_CELLS", 4_000 * 2)
    found = found_in(two_windows(np.random.default_rng(0), factor=2.0))
    assert found.notes[-1].startswith("combinations of more than 1 attributes were not looked at")
