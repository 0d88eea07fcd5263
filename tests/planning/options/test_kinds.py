"""Clusters as people write them, and the data sheets behind them."""

import pytest

from dovetail.planning.options.kinds import SHEETS, known_kind, parse_cluster, with_prices
from dovetail.vocabulary import InvalidRecord, Kind


def test_more_than_eight_devices_are_on_several_nodes() -> None:
    cluster = parse_cluster("20xa100 + 2x4xT4")
    assert [sum(d.node == node.name for d in cluster.devices) for node in cluster.nodes] == [8, 8, 4, 4, 4]
    assert {kind.name: count for kind, count in cluster.counts()} == {"a100": 20, "t4": 8}
    assert cluster.nodes[0].cores == 64
    assert {(link.source, link.target) for link in cluster.links} >= {("host", "a100"), ("t4", "t4")}


def test_kinds_at_hand_are_taken_as_they_are() -> None:
    mine = Kind(name="h200", processor="cuda", memory_bytes=7, matrix_flops_per_second=1.0)
    core = Kind(name="cpu-x", processor="cpu")
    assert parse_cluster("2xh200", at_hand=[mine]).kind("h200") == mine
    assert parse_cluster("4xcpu-x", at_hand=[core]).nodes[0].cores == 4
    assert parse_cluster("4xcpu", at_hand=[core]).kinds == (core,)


@pytest.mark.parametrize("text", ["", "a100", "8a100", "xa100", "8x", "8xa100+", "-1xa100", "8xa100,4xv100"])
def test_what_is_no_cluster_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(InvalidRecord, match="a cluster must be written as '8xa100"):
        parse_cluster(text)


@pytest.mark.parametrize("text", ["0xa100", "0x8xa100", "8x0xa100"])
def test_a_cluster_without_devices_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord, match="at least one device"):
        parse_cluster(text)


def test_a_kind_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidRecord, match=r"got 'v101'; did you mean 'v100'\?"):
        parse_cluster("8xv101")


def test_every_sheet_is_a_kind() -> None:
    for name in SHEETS:
        kind = known_kind(name)
        assert kind.matrix_flops_per_second > kind.memory_bytes_per_second > 0


@pytest.mark.parametrize("prices", [{"v100": 1.0}, {"a100": 0.0}, {"a100": float("nan")}, {"a100": float("inf")}])
def test_prices_are_above_zero_and_of_kinds_that_are_there(prices: dict[str, float]) -> None:
    with pytest.raises(InvalidRecord, match="a price must be above 0 and for a kind of the cluster"):
        with_prices(parse_cluster("8xa100"), prices)
