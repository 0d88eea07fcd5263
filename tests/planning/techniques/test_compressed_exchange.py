"""Gradients exchanged otherwise than exactly: tried where the link's rate says that it pays, explained where not."""

import pytest

from dovetail.planning.options.derivation import derive_options, trials
from dovetail.vocabulary import Cluster, Kind, LayerProfile, Link, Profile

KIND = Kind(name="a100", processor="cuda", memory_bytes=40 << 30, memory_bytes_per_second=1.5e12)
WAYS = ("gradients-bf16", "gradients-lowrank")


def cluster(bytes_per_second: float) -> Cluster:
    links = (Link(source="a100", target="a100", bytes_per_second=bytes_per_second),)
    whole = Cluster.uniform(KIND, devices_per_node=2, memory_bytes=200 << 30)
    return Cluster(kinds=whole.kinds, nodes=whole.nodes, devices=whole.devices, links=links)


def profile(**fields: object) -> Profile:
    layers = tuple(
        LayerProfile(
            name=str(n), operation="Linear", forward_seconds=0.1, backward_seconds=0.2, parameter_bytes=64 << 20
        )
        for n in range(16)
    )
    known = {"family": "f", "kind": "a100", "count": 1, "step_seconds": 5.0, "peak_bytes": 8 << 30, "layers": layers}
    return Profile(**{**known, "parameter_bytes": 1 << 30, **fields})


COPIES = profile(technique="replicate", count=2, step_seconds=4.0)


def wanted(rate: float, allowed: tuple[str, ...] = WAYS, *known: Profile) -> set[str]:
    found = trials(["f"], [profile(), *known], cluster(rate), allowed={"f": allowed})
    return {str(trial.knobs.get("approximate", "")) for trial in found if trial.technique == "replicate"}


def test_over_a_slow_link_both_are_tried_after_exact_copies() -> None:
    assert wanted(1e9) == {""}
    assert wanted(1e9, WAYS, COPIES) == set(WAYS)


def test_over_a_fast_link_neither_is_and_the_reason_is_told() -> None:
    assert wanted(400e9, WAYS, COPIES) == set()
    _, rejected = derive_options([profile()], cluster(400e9), allowed={"f": WAYS})
    reasons = {str(each.knobs["approximate"]): each.reason for each in rejected if each.technique == "replicate"}
    assert set(reasons) == set(WAYS)
    for way, reason in reasons.items():
        assert reason.startswith(f"{way} does not pay: compressing takes")
        assert reason.endswith("at 400 GB/s")


def test_without_its_name_nothing_is_tried_or_told() -> None:
    assert wanted(1e9, (), COPIES) == set()
    _, rejected = derive_options([profile()], cluster(400e9))
    assert rejected == ()


@pytest.mark.parametrize("way", WAYS)
def test_what_was_measured_is_an_option(way: str) -> None:
    copies = profile(technique="replicate", count=2, step_seconds=2.0, knobs={"approximate": way})
    options, _ = derive_options([profile(), copies], cluster(1e9), allowed={"f": WAYS})
    assert {(o.technique, str(o.knobs.get("approximate", ""))) for o in options} == {
        ("resident", ""),
        ("replicate", way),
    }
    options, _ = derive_options([profile(), copies], cluster(1e9))
    assert [option.technique for option in options] == ["resident"]


def test_products_in_8_bits_are_tried_resident_only() -> None:
    found = trials(["f"], [profile()], cluster(1e9), allowed={"f": ("fp8",)})
    assert [trial.technique for trial in found if trial.knobs.get("approximate") == "fp8"] == ["resident"]
