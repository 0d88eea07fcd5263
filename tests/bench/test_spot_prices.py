"""Readers of prices and availability, what they refuse, and generators that resemble what was read."""

import gzip
import itertools
import math
import statistics
from pathlib import Path

import pytest
from spot_prices import generate_availability, generate_prices, read_availability, read_prices

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
    (tmp_path / "trace.json").write_text("no JSON")
    with pytest.raises(InvalidWorkload, match=r"must hold metadata.gap_seconds and data; Expecting value"):
        read_availability(tmp_path / "trace.json")


def test_a_history_of_another_form_or_without_what_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("day,price\n1,2\n")
    with pytest.raises(InvalidWorkload, match=r"must have the columns date_utc, .*; 'date_utc' is not there"):
        read_prices(tmp_path / "prices.csv", instances={"p2"})
    (tmp_path / "prices.csv").write_text(HEAD + "2023-01-01,0,p2,a,0.9,0.3,v5\n2023-01-01,0,p3,a,3.0,,v5\n")
    with pytest.raises(InvalidWorkload, match=r"must have a spot price in .*prices.csv; 'p3' has none"):
        read_prices(tmp_path / "prices.csv", instances={"p2", "p3"})


def test_generated_prices_revert_to_their_mean_and_jump_now_and_then() -> None:
    days = generate_prices({"p2": 0.9, "p3": 3.0}, zones=["a", "b", "c"], days=4000, seed=1)
    assert days == generate_prices({"p3": 3.0, "p2": 0.9}, zones=["c", "b", "a"], days=4000, seed=1)
    assert days != generate_prices({"p2": 0.9, "p3": 3.0}, zones=["a", "b", "c"], days=4000, seed=2)
    assert days[1].date == "2026-01-02"
    for market in days[0].spot:
        ratios = [day.spot[market] / day.on_demand[market] for day in days]
        assert 0 < min(ratios) <= max(ratios) <= 1.0
        assert 0.2 < statistics.median(ratios) < 0.6
        moves = [abs(math.log(b / a)) for a, b in itertools.pairwise(ratios)]
        assert 0.01 < statistics.median(moves) < 0.02
        assert 0 < sum(move > 0.2 for move in moves) < 0.02 * len(moves)
    with pytest.raises(InvalidWorkload, match=r"must be above 0, that of 'p2' is -0.9"):
        generate_prices({"p2": -0.9}, zones=["a"], days=1)


def test_generated_instances_come_and_go() -> None:
    trace = generate_availability(ticks=20_000, instances=3, seed=1)
    assert set(trace.instances) == {0, 1, 2, 3}
    assert 0.5 < statistics.mean(trace.instances) / 3 < 0.75
    assert trace == generate_availability(ticks=20_000, instances=3, seed=1)
