"""What is predicted for kinds that nobody measured follows the model as it is stated."""

import dataclasses

import pytest

from dovetail.planning.options.kinds import known_kind
from dovetail.planning.options.roofline import predict_profiles, predicted
from dovetail.vocabulary import InvalidRecord, Kind, LayerProfile, Profile

CPU = Kind(name="cpu", processor="cpu", matrix_flops_per_second=4e10, memory_bytes_per_second=1e10)
LAYER = LayerProfile(name="0", operation="Linear", forward_seconds=0.1, backward_seconds=0.2)
KNOWN = Profile(family="f", kind="cpu", count=1, step_seconds=0.4, peak_bytes=1 << 30, layers=(LAYER,))


def test_arithmetic_scales_with_the_matrix_rate_and_the_hosts_part_stays() -> None:
    fast = dataclasses.replace(CPU, name="fast", matrix_flops_per_second=8e10)
    found = predicted(KNOWN, source=CPU, target=fast)
    assert found.step_seconds == pytest.approx(0.3 / 2 + 0.1)
    assert (found.kind, found.count, found.peak_bytes) == ("fast", 1, 1 << 30)


def test_memory_traffic_bounds_a_layer_from_below() -> None:
    wide = dataclasses.replace(KNOWN, layers=(dataclasses.replace(LAYER, parameter_bytes=1 << 30),))
    endless = dataclasses.replace(CPU, name="endless", matrix_flops_per_second=1e18)
    found = predicted(wide, source=CPU, target=endless)
    assert found.step_seconds == pytest.approx(3 * (1 << 30) / 1e10 + 0.1)


def test_the_optimizer_moves_its_bytes_at_the_new_rate() -> None:
    heavy = dataclasses.replace(KNOWN, step_seconds=1.3, parameter_bytes=10**9, optimizer_bytes=2 * 10**9)
    fast = dataclasses.replace(CPU, name="fast", memory_bytes_per_second=7e10)
    found = predicted(heavy, source=CPU, target=fast)
    assert found.step_seconds == pytest.approx(0.3 + 0.3 + 0.1), "7 GB took 0.7 s, so 0.3 s are the host's; now 0.1 s"


def test_single_precision_does_not_use_the_matrix_units() -> None:
    v100, a100 = known_kind("v100"), known_kind("a100")
    plain = dataclasses.replace(KNOWN, kind="v100")
    half = dataclasses.replace(plain, precision="bf16")
    assert predicted(plain, source=v100, target=a100).step_seconds == pytest.approx(0.3 * 15.7 / 19.5 + 0.1)
    assert predicted(half, source=v100, target=a100).step_seconds == pytest.approx(0.3 * 125 / 312 + 0.1)


def test_only_what_was_not_measured_is_predicted() -> None:
    kinds = [CPU, known_kind("a100"), known_kind("t4")]
    there = dataclasses.replace(KNOWN, kind="a100")
    found = predict_profiles([KNOWN, there], at_hand=[CPU], kinds=kinds)
    assert [(each.family, each.kind) for each in found] == [("f", "t4")]


def test_of_several_profiles_the_one_with_layers_on_the_fewest_devices_counts() -> None:
    bare = dataclasses.replace(KNOWN, layers=(), step_seconds=9.0)
    four = dataclasses.replace(KNOWN, count=4, step_seconds=0.2)
    (found,) = predict_profiles([bare, four, KNOWN], at_hand=[CPU], kinds=[known_kind("t4")])
    assert found == predicted(KNOWN, source=CPU, target=known_kind("t4"))


def test_rates_must_be_known() -> None:
    with pytest.raises(InvalidRecord, match=r"'cpu' has not\. Run 'dovetail cluster --measure'"):
        predicted(KNOWN, source=Kind(name="cpu", processor="cpu"), target=known_kind("t4"))
