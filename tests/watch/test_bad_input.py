"""What is wrong with a table or a condition is said in one sentence; what can be left out is left out, and said."""

import gc
import warnings

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

import dovetail as dt
from dovetail.watch.criteria import Criteria
from dovetail.watch.explain import explain_table
from dovetail.watch.expressions import match_rows
from dovetail.watch.tables import TableReader

ROWS = 400


def table(**columns):
    generator = np.random.default_rng(0)
    region, load = generator.integers(0, 4, ROWS), generator.random(ROWS)
    return {"region": [f"r{each}" for each in region], "load": load, "bad": (region == 2).tolist(), **columns}


def found_in(given, *, outliers="bad == 1", on=("region",), **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return dt.explain(given, outliers=outliers, on=list(on), **settings)["combination"]


@pytest.mark.parametrize(
    ("outliers", "said"),
    [
        ([False] * ROWS, "outliers must be some of the rows; of 400 rows none is one. Give a wider condition."),
        ([True] * ROWS, "beside others to compare with; all 400 are. Give a narrower condition."),
        ([True] * 3, "outliers must say true or false for each of 400 rows, got 3 values."),
        ([0.5] * ROWS, "outliers must be a condition, such as 'power_drain > 0.9', or true or false for each row"),
        ("load >", "a condition must be a comparison of columns, such as 'power_drain > 0.9', got 'load >'"),
        ("load + 1", "a condition must be true or false for each row, such as 'power_drain > 0.9', got 'load + 1'"),
        ("lod > 1", "a condition must name columns of the table; 'lod > 1' names 'lod'; did you mean 'load'?"),
        ("__import__('os')", "a condition must consist of comparisons, and, or, not, in and arithmetic, such as"),
        ("load.real > 1", "a condition must consist of comparisons, and, or, not, in and arithmetic, such as"),
        ("region > 1", "a condition must compare numbers with numbers and words with words; in 'region > 1': '>' not"),
        ("load and bad", "a condition must be true or false for each row, such as 'power_drain > 0.9', got 'load' in"),
    ],
)  # fmt: skip
def test_outliers_that_cannot_be(outliers, said):
    with pytest.raises(dt.DovetailError) as refused:
        dt.explain(table(), outliers=outliers, on=["region"])
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ({"region": [], "bad": []}, {}, "a table to explain must have rows; this one has none."),
        ([1, 2], {}, "a table must be a DataFrame of pandas or Polars, an Arrow table, a DuckDB relation"),
        ({"region": ["a"], "bad": [True, False]}, {}, "the columns of a table must be of one length, got"),
        (table(), {"on": ["regio"]}, "an attribute to explain by must be a column of the table, got 'regio'; did"),
        (table(region=["a"] * ROWS), {}, "there must be an attribute to explain by; 'region' is left out"),
        (table(), {"confidence": 2.0}, "confidence must be above 0 and at most 1, got 2.0."),
        (table(), {"least_ratio": float("nan")}, "least_ratio must be a number above 0, got nan."),
    ],
)  # fmt: skip
def test_tables_and_settings_that_cannot_be(given, settings, said):
    with pytest.raises(dt.DovetailError) as refused:
        dt.explain(given, **{"outliers": "bad == 1", "on": ["region"], **settings})
    assert said in str(refused.value)


def test_columns_of_one_name_are_refused():
    frame = pd.DataFrame([[1, 2, True]], columns=["a", "a", "bad"])
    with pytest.raises(
        dt.DovetailError, match="the columns of a table must have different names; 'a' is there 2 times"
    ):
        dt.explain(frame, outliers="bad == 1")


@pytest.mark.parametrize(
    "read",
    [
        lambda frame: dt.drift(frame, frame),
        lambda frame: dt.DriftDetector(frame),
        lambda frame: dt.Monitor(metrics=["m"], attributes=["a"]).update(frame),
    ],
)
def test_columns_of_one_name_are_refused_of_windows_and_streams_too(read):
    frame = pd.DataFrame([[1, 2, 0.5]] * 30, columns=["a", "a", "m"])
    with pytest.raises(
        dt.DovetailError, match=r"must have different names; 'a' is there 2 times\. Rename or drop all but one\."
    ):
        read(frame)


def test_a_million_rows_of_as_many_values_are_left_out_and_said():
    state = np.arange(1_000_000) % 3
    with pytest.warns(UserWarning, match="'id' is left out: it has another value in each row"):
        found = dt.explain({"id": np.arange(1_000_000), "state": state}, outliers=(state == 2))
    assert found["combination"] == ["state = 2"]


def test_a_million_values_of_a_stream_are_not_held():
    monitor = dt.Monitor(metrics=["m"], attributes=["id"])
    for start in range(0, 1_000_000, 250_000):
        monitor.update({"m": np.zeros(250_000), "id": np.arange(start, start + 250_000)})
    (note,) = monitor.notes()
    assert note == "'id' has more values than are counted (1000), none of them frequent; it explains nothing"
    assert monitor.frequent() == []


@pytest.mark.parametrize("window", [{"region": [], "m": []}, pd.DataFrame({"region": [], "m": []})])
def test_an_empty_window_is_refused(window):
    rows = {"region": ["eu", "us"] * 20, "m": [0.5, 0.7] * 20}
    with pytest.raises(dt.DovetailError, match="the reference must have at least 20 rows to be compared; it has 0"):
        dt.drift(window, rows)
    with pytest.raises(
        dt.DovetailError, match="the current window must have at least 20 rows to be compared; it has 0"
    ):
        dt.drift(rows, window)
    monitor = dt.Monitor(metrics=["m"], attributes=["region"])
    assert len(monitor.update(window)) == 0
    with pytest.raises(dt.DovetailError, match="a monitor must have seen events before it is asked; this one has seen"):
        monitor.unusual()


def test_a_value_in_each_row_is_left_out_and_said():
    given = table(id=[f"id{n}" for n in range(ROWS)], number=list(range(ROWS)))
    with pytest.warns(UserWarning, match="is left out: it has another value in each row") as said:
        found = dt.explain(given, outliers="bad == 1", on=["region", "id", "number"])
    assert found["combination"] == ["region = r2"]
    assert len(said) == 2


def test_a_copy_is_left_out_and_said():
    with pytest.warns(UserWarning, match="'copy' is left out: it says the same of every row as 'region'"):
        found = dt.explain(table(copy=table()["region"]), outliers="bad == 1", on=["region", "copy"])
    assert found["combination"] == ["region = r2"]


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_a_missing_value_explains_like_any_other(kind):
    given = kind(table(firmware=[None if bad else f"v{n % 3}" for n, bad in enumerate(table()["bad"])]))
    assert list(found_in(given, on=["firmware"])) == ["firmware is missing"]


@pytest.mark.parametrize("kind", [dict, pl.DataFrame, lambda columns: pl.DataFrame(columns).to_arrow()])
def test_a_column_without_any_value_is_left_out_and_said(kind):
    with pytest.warns(UserWarning, match="'nothing' is left out: it has the same value in each row"):
        found = dt.explain(kind(table(nothing=[None] * ROWS)), outliers="bad == 1", on=["region", "nothing"])
    assert list(map(str, found["combination"])) == ["region = r2"]


def test_what_is_missing_matches_no_condition():
    load = [None if n % 2 else float(n) for n in range(ROWS)]
    reader = TableReader(table(load=load, region=["a" if n < 200 else "b" for n in range(ROWS)]))
    found = explain_table(reader, outliers="load >= 200", on=["region"], criteria=Criteria())
    assert (found.outliers, found.found[0].combination) == (100, "region = b")


@pytest.mark.parametrize("kind", [dict, pd.DataFrame])
def test_types_may_be_mixed(kind):
    mixed = [(1, "1", 1.0, True, None)[n % 5] for n in range(ROWS)]
    given = kind(table(mixed=pd.Series(mixed, dtype=object) if kind is pd.DataFrame else mixed))
    bad = [n % 5 == 1 for n in range(ROWS)]
    found = found_in(given, outliers=bad, on=["mixed"])
    assert list(found) == ["mixed = 1"]


def test_infinite_measures_are_the_least_and_greatest():
    load = table()["load"].copy()
    load[:60] = np.inf
    load[60:120] = -np.inf
    load[120:130] = np.nan
    found = found_in(table(load=load), outliers=[n < 60 for n in range(ROWS)], on=["load"])
    assert found == ["load = inf"]
    assert found_in(table(load=load), outliers="load < 0", on=["region", "load"]) == ["load = -inf"]


def test_a_million_values_of_an_attribute():
    rows = 1_000_000
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 10**12, rows)
    ids[: rows // 100] = 7
    state = generator.integers(0, 3, rows)
    found = dt.explain({"id": ids, "state": state}, outliers=(ids == 7), on=["id", "state"])
    assert found["combination"] == ["id = 7"]
    assert (found["outlier_count"], found["total_count"]) == ([10_000], [10_000])


def test_columns_of_a_frame_may_be_named_by_numbers():
    frame = pd.DataFrame(
        {0: [f"r{n % 4}" for n in range(ROWS)], 1: np.arange(ROWS) / ROWS, 2: np.arange(ROWS) % 4 == 2}
    )
    assert found_in(frame, outliers=frame[2].tolist(), on=["0"]).tolist() == ["0 = r2"]
    found = dt.drift(frame[[0, 1]], frame[[0, 1]])
    assert {each.name for each in found.columns} == {"0", "1"}
    detector = dt.DriftDetector(frame[[0, 1]], block_rows=100)
    assert detector.update(frame[[0, 1]].sample(frac=1.0, random_state=0)) == []
    monitor = dt.Monitor(metrics=["1"], attributes=["0"])
    assert len(monitor.update(frame)) == ROWS


def test_an_answer_can_be_queried_beside_the_relation_it_is_of():
    connection = duckdb.connect()
    connection.sql("CREATE TABLE events AS SELECT 'r' || range % 4 AS region, range % 4 = 2 AS bad FROM range(400)")
    answer = dt.explain(connection.table("events"), outliers="bad == 1", on=["region"])
    joined = connection.sql("SELECT count(*) FROM events JOIN answer USING (region)")
    gc.collect()
    assert joined.fetchall() == [(100,)]
    assert answer.columns[0] == "combination"


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["r0", "r1", "r2", "r3"])])
def test_categories_of_polars_are_attributes(dtype):
    region = [None if n % 7 == 0 else each for n, each in enumerate(table()["region"])]
    frame = pl.DataFrame(table(region=region)).with_columns(pl.col("region").cast(dtype))
    assert list(found_in(frame)) == ["region = r2"]
    assert list(found_in(frame, outliers=[each is None for each in region])) == ["region is missing"]


@pytest.mark.parametrize("wrap", [lambda n: [n, n], lambda n: {"n": n}])
def test_lists_and_structs_of_arrow_are_attributes_as_they_are_written(wrap):
    frame = pl.DataFrame(table(parts=[wrap(int(region[1])) for region in table()["region"]]))
    assert list(found_in(frame, on=["parts"])) == [f"parts = {wrap(2)}"]


def test_whole_numbers_may_be_larger_than_floats_tell_apart():
    load = [2**60 + 1 + n * 2**50 for n in range(ROWS)]
    frame = pl.DataFrame(table(load=load, region=["a" if n < 200 else "b" for n in range(ROWS)]))
    assert list(found_in(frame, outliers=f"load >= {load[200]}")) == ["region = b"]
    assert list(found_in(frame, outliers=[n < 40 for n in range(ROWS)], on=["load"], ranges=["load"])) != []


@pytest.mark.parametrize(
    ("outliers", "expected"),
    [
        ("power > 0", 399),
        ("power > 0.5", 399),
        ("power > -1", 400),
        ("`0` == 1", 100),
        ("class == 1 and lambda > 0", 100),
        ("`class` == 1", 100),
        ("`in` in (1, 2)", 200),
        ("`in` == 1 and power in (1, 2)", 1),
        ("flag", 200),
        ("not flag", 200),
    ],
)
@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_columns_named_as_numbers_and_words_of_python_and_of_booleans(outliers, expected, kind):
    power = [float(n) for n in range(ROWS)]
    parts = [n % 4 for n in range(ROWS)]
    odd = {"0": parts, "-1": power, "class": parts, "in": parts, "lambda": power, "flag": [n % 2 == 0 for n in parts]}
    reader = TableReader(kind({"power": power, **odd}))
    assert match_rows(outliers, reader.names, reader.numbers, rows=ROWS).sum() == expected
