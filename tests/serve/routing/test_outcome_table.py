"""Outcomes come from CSV, Parquet and folders of it alike, are told in parts, and what cannot be is refused."""

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from dovetail.serve.routing import OutcomeTable
from dovetail.vocabulary import DovetailError
from tests.serve.routing.outcomes import rows_of, table_of


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_every_kind_of_file_gives_the_same_table(tmp_path, kind):
    rows = rows_of(60, domains=True, answers=True)
    rows[0]["query"] = 'with "quotes",\nand a second line'
    rows[1]["query"] = rows[0]["query"]
    path, table = tmp_path / "outcomes", pyarrow.Table.from_pylist(rows)
    if kind == "csv":
        csv.write_csv(table, path)
    elif kind == "parquet":
        parquet.write_table(table, path)
    else:
        path.mkdir()
        parquet.write_table(table[:7], path / "part-1.parquet")
        parquet.write_table(table[7:], path / "part-2.parquet")
    found, told = OutcomeTable.read(path), OutcomeTable.of(rows)
    assert (found.queries, found.models, found.domains, found.answers) == (
        told.queries, told.models, told.domains, told.answers,
    )  # fmt: skip
    assert np.array_equal(found.quality, told.quality)
    assert np.array_equal(found.price, told.price)


def test_an_outcome_may_be_told_in_parts():
    table = OutcomeTable.of(
        [
            {"id": "a", "query": "q", "model": "small", "price": 0.1, "quality": None},
            {"id": "b", "query": "q", "model": "small", "price": 0.2, "quality": None},
            {"id": "b", "model": "small", "quality": 0.5},
        ]
    )
    assert len(table) == 2
    assert np.isnan(table.quality[0, 0])
    assert table.quality[1, 0] == 0.5
    assert table.price[:, 0].tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row with a query"),
        ([{"query": "q", "quality": 1.0, "price": 0.1}], "must name its query and its model"),
        ([{"query": "q", "model": "m", "quality": 7.0, "price": 0.1}], "qualities must be from 0 to 1; 1 are not"),
        ([{"query": "q", "model": "m", "quality": 1.0, "price": -1.0}], "prices must be 0 or more"),
        ([{"query": "q", "model": "m", "quality": "good", "price": 1.0}], "quality in the table must be numbers"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, message):
    with pytest.raises(DovetailError, match=message):
        OutcomeTable.of(rows)


def test_files_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(DovetailError, match="is not there"):
        OutcomeTable.read(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text("query,model\nq,m\n")
    with pytest.raises(DovetailError, match="quality, price are missing"):
        OutcomeTable.read(tmp_path / "a.csv")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then garbage")
    with pytest.raises(DovetailError, match="must be CSV or Parquet"):
        OutcomeTable.read(tmp_path / "b.parquet")


def test_too_few_judged_queries_are_refused():
    with pytest.raises(DovetailError, match="at least 50 queries with a quality"):
        table_of(20).keep_judged()
