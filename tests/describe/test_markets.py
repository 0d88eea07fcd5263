"""Readers of prices and availability, and what they refuse."""

import gzip
from pathlib import Path

import pytest

from dovetail.describe.markets import read_availability, read_prices
from dovetail.vocabulary import InvalidWorkload

HEAD = "date_utc,unix_time,instance_type,region_zone,ondemand_usd_h,spot_usd_h,catalog\n"


def test_prices_by_day_gzipped_or_not(tmp_path: Path) -> None:
    text = HEAD + "2023-01-02,1,p2,a,0.9,,v5\n2023-01-01,0,p2,a,0.9,0.3,v5\n2023-01-01,0,other,a,1,1,v5\n"
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(text.encode()))
    days = read_prices(tmp_path / "plain.csv", instances={"p2"})
    assert days == read_prices(tmp_path / "packed.csv.gz", instances={"p2"})
    assert [day.date for day in days] == ["2023-01-01", "2023-01-02"]
    assert dict(days[0].spot) == {("p2", "a"): 0.3}
    assert dict(days[1].spot) == {}
    assert dict(days[1].on_demand) == {("p2", "a"): 0.9}


@pytest.mark.parametrize("price", ["-0.3", "cheap", "nan"])
def test_a_price_that_cannot_be(tmp_path: Path, price: str) -> None:
    (tmp_path / "prices.csv").write_text(HEAD + f"2023-01-01,0,p2,a,0.9,{price},v5\n")
    with pytest.raises(InvalidWorkload, match=r"line 2 of .*, spot_usd_h: a price must be a number of at least 0"):
        read_prices(tmp_path / "prices.csv", instances={"p2"})


def test_availability(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"metadata": {"gap_seconds": 32}, "data": [0, 1]}')
    assert read_availability(tmp_path / "trace.json").instances == (0, 1)
    (tmp_path / "trace.json").write_text('{"data": [0, 1]}')
    with pytest.raises(InvalidWorkload, match=r"must hold metadata.gap_seconds and data; 'metadata' is wrong"):
        read_availability(tmp_path / "trace.json")
