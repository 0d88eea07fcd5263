"""Copies and shards: what they take, from what one device took."""

import pytest

from dovetail.planning.fitting import Width
from dovetail.planning.techniques import replicate, shard
from dovetail.vocabulary import Cluster, Kind, LayerProfile, Link, Profile

CPU = Kind(name="cpu", processor="cpu")
H100 = Kind(name="h100", processor="cuda", memory_bytes=80 << 30)
LAYERS = tuple(
    LayerProfile(name=name, operation="Linear", forward_seconds=0.1, backward_seconds=0.2, parameter_bytes=1 << 30)
    for name in "abcd"
)


def profile(**more: object) -> Profile:
    measured = {
        "family": "f",
        "kind": "h100",
        "count": 1,
        "step_seconds": 1.0,
        "peak_bytes": 40 << 30,
        "parameter_bytes": 4 << 30,
        "optimizer_bytes": 8 << 30,
        "layers": LAYERS,
    }
    return Profile(**(measured | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("technique", [replicate, shard])
def test_with_free_links_work_is_divided(technique) -> None:  # type: ignore[no-untyped-def]
    for count in (2, 4, 8):
        (seconds,) = technique.predict(profile(), kind=H100, width=Width(count), bytes_per_second=1e18).step_seconds
        assert seconds == pytest.approx(1 / count, abs=2e-3)


@pytest.mark.parametrize("technique", [replicate, shard])
def test_slower_links_make_slower_steps_and_take_no_memory(technique) -> None:  # type: ignore[no-untyped-def]
    slow, fast = (
        technique.predict(profile(), kind=H100, width=Width(4), bytes_per_second=rate) for rate in (1e9, 1e10)
    )
    assert slow.step_seconds > fast.step_seconds
    assert slow.device_bytes == fast.device_bytes


def test_copies_are_whole_and_shards_are_not() -> None:
    held = [
        [
            technique.predict(profile(), kind=H100, width=Width(count), bytes_per_second=1e10).device_bytes >> 30
            for count in (2, 4)
        ]
        for technique in (replicate, shard)
    ]
    # 16 GiB of weights, gradients and state; 24 of activations; a block with its gradient is 2.
    assert held == [[16 + 12, 16 + 6], [8 + 12 + 2, 4 + 6 + 2]]


def test_shards_send_more_than_copies_and_again_for_each_microbatch() -> None:
    seconds = [
        technique.predict(profile(accumulate=accumulate), kind=H100, width=Width(2), bytes_per_second=1e9).step_seconds[
            0
        ]
        for technique, accumulate in ((replicate, 1), (replicate, 4), (shard, 1), (shard, 4))
    ]
    assert seconds[0] == seconds[1] < seconds[2] < seconds[3]


def test_what_was_measured_is_offered_as_it_is() -> None:
    for technique, host_bytes in ((replicate, 6000), (shard, 6000)):
        name = technique.__name__.rpartition(".")[2]
        made = technique.option(profile(kind="cpu", count=3, peak_bytes=2000, technique=name), kind=CPU)
        assert (made.technique, made.count, made.cores, made.measured) == (name, 3, 3, True)
        assert (made.host_bytes, made.device_bytes, made.step_seconds) == (host_bytes, 0, (1.0,))


def test_rates_are_those_of_the_links() -> None:
    links = (
        Link(source="process", target="process", bytes_per_second=2e9),
        Link(source="h100", target="h100", bytes_per_second=3e11),
        Link(source="h100", target="h100", bytes_per_second=1e9, between_nodes=True),
    )
    cluster = Cluster(kinds=(CPU, H100), nodes=(), devices=(), links=links)
    rates = [replicate.rate_between(cluster, kind, width=Width(2)) for kind in (CPU, H100)]
    assert rates == [2e9, 3e11]
