"""MacroBase's golden queries: the same rows, supports and ratios, from every kind of table."""

import math
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dovetail as dt

DATA = Path(__file__).parent / "data"
KINDS = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "duckdb": lambda frame: duckdb.from_df(frame),
    "columns": lambda frame: frame.to_dict("list"),
}
DEFAULTS = {"least_ratio": 1.5, "least_support": 0.2, "order": 3, "ratio": "global", "show": "minimal"}
QUERIES = {
    1: {},
    3: {},
    5: {"order": 1},
    7: {"order": 1, "least_ratio": 10.0, "least_support": 0.05},
    9: {"order": 1, "ratio": "risk"},
    11: {"ratio": "risk"},
}


def rows_of(table):
    if isinstance(table, duckdb.DuckDBPyRelation):
        table = table.df()
    if isinstance(table, pl.DataFrame | pa.Table):
        table = pd.DataFrame(table.to_dict(as_series=False) if isinstance(table, pl.DataFrame) else table.to_pydict())
    return pd.DataFrame(table).to_dict("records")


@pytest.fixture(scope="module")
def sample():
    return pd.read_csv(DATA / "sample.csv")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("query", QUERIES)
def test_the_answers_are_macrobases(sample, query, kind):
    table = KINDS[kind](sample)
    settings = DEFAULTS | QUERIES[query]
    found = dt.explain(table, outliers="usage > 1000.0", on=["location", "version"], **settings)
    assert type(found) is (pl.DataFrame if kind == "lazy" else type(table))
    expected = pd.read_csv(DATA / f"{query}.csv").to_dict("records")
    assert [*map(key, rows_of(found))] == [*map(key, sorted(expected, key=lambda row: -row["support"]))]


def key(row):
    names = [None if pd.isna(row.get(name)) else row[name] for name in ("location", "version")]
    ratio = row.get("global_ratio", row.get("risk_ratio"))
    return [*names, pytest.approx(row["support"]), pytest.approx(ratio), row["outlier_count"], row["total_count"]]


def test_infinite_where_every_outlier_has_it(sample):
    found = dt.explain(sample, outliers="usage > 1000.0", on=["location", "version"], **DEFAULTS | {"ratio": "risk"})
    assert [math.isinf(row) for row in found["risk_ratio"]] == [True, False]
