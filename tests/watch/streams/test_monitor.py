"""A monitor says which combination the outliers come from, holds a fixed amount, and goes on where it was saved."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dovetail as dt

ATTRIBUTES = ["region", "version", "device"]


def stream(seed, count, *, planted=0.05, metrics=1):
    draws = np.random.default_rng(seed)
    table = {
        "region": np.array(["eu", "us", "asia"], dtype=object)[draws.integers(0, 3, count)],
        "version": draws.integers(1, 6, count),
        "device": np.array([f"d{n}" for n in range(40)], dtype=object)[draws.integers(0, 40, count)],
    }
    there = (table["region"] == "eu") & (table["version"] == 3) & (draws.random(count) < planted * 5)
    for number in range(metrics):
        table[f"m{number}"] = draws.normal(size=count) + 12 * there
    table["at"] = np.arange(count) / 100
    return table


def watch(metrics=1, **settings):
    return dt.Monitor(metrics=[f"m{n}" for n in range(metrics)], attributes=ATTRIBUTES, time="at", **settings)


@pytest.mark.parametrize("metrics", [1, 2])
def test_the_planted_combination_comes_first_and_alone(metrics):
    monitor = watch(metrics, outlier_share=0.02)
    for seed in range(4):
        monitor.update(stream(seed, 20_000, metrics=metrics))
    found = monitor.unusual(least_ratio=3.0, least_support=0.1)
    assert [each.values for each in found] == [{"region": "eu", "version": 3}]
    assert found[0].low < found[0].ratio < found[0].high
    assert found[0].share == pytest.approx(1 / 15, rel=0.1)


@pytest.mark.parametrize("where", [{"version": 3}, {"region": "eu", "version": 3}])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_combination_that_has_all_outliers_is_named_without_its_parts(where, noise):
    """Its parts have all of them, too, and are as infinitely likelier."""
    monitor = watch(outlier_share=0.05)
    for seed in range(3):
        table, draws = stream(seed, 20_000, planted=0.0), np.random.default_rng(seed)
        there = np.logical_and.reduce([table[name] == value for name, value in where.items()])
        table["m0"] = table["m0"] + 100 * (there & (draws.random(20_000) < 0.2) | (draws.random(20_000) < noise))
        monitor.update(table)
    assert [each.values for each in monitor.unusual()] == [where]


def test_where_nothing_is_behind_outliers_nothing_is_named():
    named = 0
    for seed in range(40):
        monitor = watch(outlier_share=0.02)
        monitor.update(stream(seed, 10_000, planted=0.0))
        named += bool(monitor.unusual(least_ratio=1.01))
    assert named <= 4


def test_kinds_of_tables_give_the_same(tmp_path):
    table = stream(0, 5_000)
    frame = pd.DataFrame(table)
    categories = frame.astype({"region": "category", "device": "category"})
    found = []
    for each in (table, frame, categories):
        monitor = watch()
        scores = monitor.update(each)
        found.append((scores.tolist(), monitor.frequent(), monitor.windows()))
    assert found[0] == found[1] == found[2]


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(tmp_path):
    one = watch(2, capacity=30, half_life=5_000.0)
    one.update(stream(0, 20_000, metrics=2))
    one.save(tmp_path / "monitor.npz")
    other = dt.Monitor.load(tmp_path / "monitor.npz")
    for seed in (1, 2):
        batch = stream(seed, 20_000, metrics=2)
        assert one.update(batch).tolist() == other.update(batch).tolist()
    assert one.frequent() == other.frequent()
    assert one.windows() == other.windows()
    assert one.unusual() == other.unusual()
    assert [each.name for each in tmp_path.iterdir()] == ["monitor.npz"]


def test_it_does_not_grow(tmp_path):
    monitor, sizes = watch(capacity=50), []
    draws = np.random.default_rng(0)
    for seed in range(6):
        batch = stream(seed, 40_000)
        batch["device"] = draws.integers(0, 1 << 60, 40_000)
        batch["at"] = batch["at"] + seed * 400
        monitor.update(batch)
        sizes.append(monitor.save(tmp_path / "monitor.npz").stat().st_size)
    assert max(sizes[1:]) <= sizes[0] * 1.02


def test_a_file_that_is_no_monitor_is_refused(tmp_path):
    (tmp_path / "other").write_text("x")
    for name in ("other", "absent"):
        with pytest.raises(dt.DovetailError, match=f"{name} must be a monitor that was saved; it cannot be read"):
            dt.Monitor.load(tmp_path / name)


def test_an_empty_batch_changes_nothing():
    monitor = watch()
    assert monitor.update({name: np.empty(0) for name in ["m0", *ATTRIBUTES, "at"]}).tolist() == []
    with pytest.raises(dt.DovetailError, match="must have seen events"):
        monitor.unusual()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": []}, "a monitor must have a metric to score events by"),
        ({"metrics": ["a"], "attributes": ["a"]}, r"must be different columns; \['a'\] are named twice"),
        ({"metrics": ["a"], "half_life": 0}, "half_life must be greater than 0, got 0"),
        ({"metrics": ["a"], "outlier_share": 1.0}, "outlier_share must be between 0 and 0.5, got 1.0"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(dt.DovetailError, match=message):
        dt.Monitor(**settings)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"m": ["a", "b"]}, "'m' must be numbers; found 'a'. Name it as an attribute, or turn it into numbers"),
        ({"m": [1.0, "b"]}, "'m' must be numbers; found 'b'"),
        ({"x": [1.0]}, r"must have the columns \['m'\]; \['m'\] are not among its \['x'\]"),
        ([1.0], "a table must be a DataFrame of pandas or Polars, an Arrow table, .* or columns by name, got list"),
    ],
)
def test_batches_that_cannot_be(batch, message):
    with pytest.raises(dt.DovetailError, match=message):
        dt.Monitor(metrics=["m"]).update(batch)


def test_columns_of_two_lengths_are_refused():
    with pytest.raises(dt.DovetailError, match="the columns of a table must be of one length, got"):
        dt.Monitor(metrics=["m"], attributes=["a"]).update({"m": [1.0], "a": [1, 2]})


def test_only_missing_metrics_leave_it_without_scores():
    monitor = dt.Monitor(metrics=["m"])
    assert np.isnan(monitor.update({"m": [None, None]})).all()
    monitor.update({"m": [1.0, 2.0, 3.0]})
    assert monitor.update({"m": [1e6]})[0] > monitor.threshold


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "arrow", "duckdb"])
def test_whoevers_table_it_is_the_stream_is_the_same(kind):
    draws = np.random.default_rng(0)
    rows = {
        "m": draws.gamma(2.0, size=20_000),
        "region": draws.choice(["eu", "us", "asia"], 20_000).astype(object),
        "version": draws.integers(0, 5, 20_000),
        "at": np.datetime64("2026-01-01", "ms") + np.arange(20_000),
    }
    frame = pd.DataFrame(rows)
    batch = {
        "pandas": lambda: frame,
        "polars": lambda: pl.DataFrame(frame),
        "lazy": lambda: pl.DataFrame(frame).lazy(),
        "arrow": lambda: pa.Table.from_pandas(frame),
        "duckdb": lambda: duckdb.from_arrow(pa.Table.from_pandas(frame)),
    }[kind]()
    one, other = (dt.Monitor(metrics=["m"], attributes=["region", "version"], time="at") for _ in range(2))
    assert np.array_equal(one.update(rows), other.update(batch))
    assert one.frequent() == other.frequent()
    assert one.windows() == other.windows()


@pytest.mark.parametrize("kind", ["pandas", "arrow", "polars", "pandas of arrow"])
def test_moments_with_a_zone_are_in_the_windows_of_their_seconds(kind):
    moments = pd.Series(pd.date_range("2024-01-01 01:00", periods=300, freq="s", tz="Europe/Berlin"))
    frame = pd.DataFrame({"at": moments, "m": np.zeros(300), "region": ["eu", "us"] * 150})
    if kind == "pandas of arrow":
        frame["at"] = moments.astype(pd.ArrowDtype(pa.timestamp("us", "Europe/Berlin")))
    tables = {"arrow": pa.Table.from_pandas, "polars": pl.from_pandas}
    monitor = dt.Monitor(metrics=["m"], attributes=["region"], time="at", window_seconds=60)
    monitor.update(tables.get(kind, lambda frame: frame)(frame))
    windows = monitor.windows()
    assert [(each.start_seconds, each.events) for each in windows] == [(1704067200 + 60 * n, 60) for n in range(5)]
