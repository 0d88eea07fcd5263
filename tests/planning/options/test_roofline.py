"""What is predicted for kinds that nobody measured follows the model as it is stated."""

import dataclasses

import pytest

from dovetail.planning.options.kinds import known_kind
from dovetail.planning.options.roofline import predict_profiles, predicted
from dovetail.planning.techniques import replicate
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


SMALL = LayerProfile(name="0", operation="Linear", forward_seconds=1e-4, backward_seconds=2e-4, parameter_bytes=9 << 10)
# A small network on a CPU: of 2.4 ms a step, the layers take 0.9 ms, and Python the rest.
HOST_BOUND = dataclasses.replace(
    KNOWN,
    step_seconds=2.4e-3,
    parameter_bytes=27 << 10,
    layers=tuple(dataclasses.replace(SMALL, name=n) for n in "abc"),
)


def test_what_the_host_takes_is_the_same_on_every_device_and_on_two() -> None:
    k80, h100 = known_kind("k80"), known_kind("h100")
    slow, fast = (predicted(HOST_BOUND, source=CPU, target=kind) for kind in (k80, h100))
    assert 1.5e-3 < fast.step_seconds <= slow.step_seconds < 2.4e-3, "the layers' part alone is faster"
    one = fast.step_seconds
    two = replicate.step_seconds(fast, kind=h100, count=2, bytes_per_second=1e11)
    assert two > one, "nothing is left to divide, and two ranks have to agree"


def test_what_no_layers_were_told_apart_of_is_the_hosts_where_it_is_short() -> None:
    own = dataclasses.replace(HOST_BOUND, layers=())
    k80, h100 = known_kind("k80"), known_kind("h100")
    slow, fast = (predicted(own, source=CPU, target=kind) for kind in (k80, h100))
    assert 2e-3 <= fast.step_seconds <= slow.step_seconds < 2.4e-3
    two = replicate.step_seconds(fast, kind=h100, count=2, bytes_per_second=1e11)
    assert two > 0.9 * fast.step_seconds


def test_what_the_device_takes_scales_and_is_divided() -> None:
    layers = tuple(dataclasses.replace(LAYER, name=name, forward_seconds=1.0, backward_seconds=2.0) for name in "abc")
    large = dataclasses.replace(KNOWN, step_seconds=9.1, layers=layers)
    k80, h100 = known_kind("k80"), known_kind("h100")
    slow, fast = (predicted(large, source=CPU, target=kind) for kind in (k80, h100))
    assert slow.step_seconds - 0.1 > 5 * (fast.step_seconds - 0.1)
    two = replicate.step_seconds(slow, kind=k80, count=2, bytes_per_second=1e11)
    assert two == pytest.approx((slow.step_seconds - 0.1) / 2 + 0.1, rel=0.02)


def test_a_step_takes_no_less_than_to_launch_its_kernels() -> None:
    layers = tuple(dataclasses.replace(SMALL, name=str(number)) for number in range(100))
    deep = dataclasses.replace(KNOWN, step_seconds=0.03, layers=layers)
    found = predicted(deep, source=CPU, target=known_kind("h100"))
    assert found.step_seconds == pytest.approx(100 * 3 * 1e-5)


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
