"""Where segments live within budgets, how profiles become segments, and what is predicted of them."""

import dataclasses
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.planning.streaming import Layout, Segment, StreamingRates
from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.planning.techniques.spill import (
    DoesNotFit,
    SpillRoom,
    cut,
    layout,
    option,
    predict,
    segments,
    working_bytes,
)
from dovetail.vocabulary import Cluster, Kind, LayerProfile, Link, Profile, TechniqueRefused

from .spilled import LARGE, segment
from .spilled import segments as any_segments

H200 = Kind(name="h200", processor="cuda", memory_bytes=139 << 30, memory_bytes_per_second=3.2e12)
budgets = st.fixed_dictionaries(
    {
        "device_bytes": st.integers(0, 2000),
        "host_bytes": st.integers(0, 1500).map(lambda free: CUDA_HOST_BYTES + free),
        "working_bytes": st.integers(0, 200),
        "depth": st.integers(1, 4),
        "disk_bytes": st.integers(0, 400),
        "holds_gradients": st.booleans(),
    }
)


def judged(found: tuple[Segment, ...], **budget: int) -> Layout | DoesNotFit:
    try:
        return layout(found, **budget)  # type: ignore[arg-type]
    except DoesNotFit as refusal:
        return refusal


def needed_on_device(found: tuple[Segment, ...], kept: frozenset[str], budget: dict[str, int]) -> int:
    """The rule, said another way."""
    staying = [each for each in found if each.name in kept]
    streaming = [each for each in found if each.name not in kept]
    held = sum(each.travel_bytes + each.state_bytes for each in staying)
    held += sum(each.gradient_bytes for each in staying) if budget["holds_gradients"] else 0
    if not streaming:
        return budget["working_bytes"] + held
    slots = min(budget["depth"], len(streaming))
    room = slots * max(each.travel_bytes for each in streaming) + 2 * max(each.gradient_bytes for each in streaming)
    return budget["working_bytes"] + held + room


@given(any_segments(), budgets)
def test_a_layout_keeps_within_its_budgets_and_says_what_it_takes(
    found: tuple[Segment, ...], budget: dict[str, int]
) -> None:
    made = judged(found, **budget)
    assume(isinstance(made, Layout))
    assert isinstance(made, Layout)
    streaming = [each for each in found if each.name not in made.kept]
    assert made.device_bytes == needed_on_device(found, made.kept, budget) <= budget["device_bytes"]
    pinned = sum(each.travel_bytes + each.gradient_bytes for each in streaming)
    in_memory = sum(each.state_bytes for each in streaming if each.name not in made.on_disk)
    assert made.pinned_bytes == pinned
    assert made.host_bytes == CUDA_HOST_BYTES + pinned + in_memory <= budget["host_bytes"]
    on_disk = [each for each in streaming if each.name in made.on_disk]
    assert made.disk_bytes == sum(each.state_bytes for each in on_disk) <= budget["disk_bytes"]
    assert made.depth == min(budget["depth"], len(streaming))


@given(any_segments(), budgets)
def test_fixed_segments_and_as_many_of_the_smallest_as_fit_are_kept(
    found: tuple[Segment, ...], budget: dict[str, int]
) -> None:
    made = judged(found, **budget)
    fixed = frozenset(each.name for each in found if each.fixed)
    by_size = sorted(found, key=lambda each: each.travel_bytes + each.state_bytes)
    others = [each.name for each in by_size if not each.fixed]
    beginnings = [fixed | set(others[:count]) for count in range(len(others) + 1)]
    fitting = [kept for kept in beginnings if needed_on_device(found, kept, budget) <= budget["device_bytes"]]
    if isinstance(made, Layout):
        assert made.kept == fitting[-1]
    else:  # for the device, only where nothing fits it
        assert ("on the device" in str(made)) == (not fitting)


@given(any_segments(), budgets, st.integers(0, 500))
def test_a_larger_device_keeps_no_less_and_takes_no_more_of_the_host(
    found: tuple[Segment, ...], budget: dict[str, int], more: int
) -> None:
    small = judged(found, **budget)
    large = judged(found, **budget | {"device_bytes": budget["device_bytes"] + more})
    if isinstance(small, Layout):
        assert isinstance(large, Layout)
        assert small.kept <= large.kept
        assert small.host_bytes + small.disk_bytes >= large.host_bytes + large.disk_bytes


@given(any_segments(), budgets)
def test_a_refusal_names_the_least_that_would_do(found: tuple[Segment, ...], budget: dict[str, int]) -> None:
    refusal = judged(found, **budget)
    assume(isinstance(refusal, DoesNotFit))
    assert isinstance(refusal, DoesNotFit)
    which = "device_bytes" if "on the device" in str(refusal) else "host_bytes"
    assert refusal.needed_bytes > refusal.free_bytes == budget[which]
    too_little = judged(found, **budget | {which: refusal.needed_bytes - 1})
    assert isinstance(too_little, DoesNotFit)
    enough = judged(found, **budget | {which: refusal.needed_bytes})
    # What fits the device may still be too much for the host.
    assert isinstance(enough, Layout) or (which == "device_bytes" and "of host memory" in str(enough))


def test_state_goes_to_disk_from_the_last_segment_on_and_no_more_than_must() -> None:
    found = tuple(segment(name, 10) for name in "abcd")
    everything = CUDA_HOST_BYTES + 4 * 160
    base = {"device_bytes": 80, "working_bytes": 0, "disk_bytes": 1000}
    on_disk = [layout(found, host_bytes=everything - less, **base).on_disk for less in (0, 1, 120, 121)]
    assert on_disk == [frozenset(), {"d"}, {"d"}, {"c", "d"}]


def test_the_words_of_a_refusal() -> None:
    with pytest.raises(TechniqueRefused) as refused:
        layout(LARGE, device_bytes=4 << 30, host_bytes=125 << 30, working_bytes=5 << 30)
    assert str(refused.value) == (
        "needs at least 6.5 GiB on the device (5.0 GiB to work in, 0 B for segments that stay, 1.5 GiB for those that "
        "stream); the budget is 4.0 GiB. Raise it, recompute activations, use a smaller batch with accumulate, or cut "
        "the model into smaller segments."
    )
    with pytest.raises(TechniqueRefused) as refused:
        layout(LARGE, device_bytes=8 << 30, host_bytes=64 << 30, working_bytes=5 << 30, disk_bytes=20 << 30)
    assert str(refused.value) == (
        "needs at least 86.2 GiB of host memory for the segments that stream, with 18.1 GiB of their state on disk; "
        "there are 64.0 GiB, and 20.0 GiB of disk. Raise the device's budget, allow more disk, or add host memory."
    )
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.needed_bytes, again.free_bytes) == (refused.value.needed_bytes, 64 << 30)  # type: ignore[attr-defined]


def layer(name: str, *, parameter_bytes: int = 4000, activation_bytes: int = 0, seconds: float = 0.0) -> LayerProfile:
    return LayerProfile(
        name=name,
        operation="Linear",
        forward_seconds=seconds,
        backward_seconds=2 * seconds,
        parameter_bytes=parameter_bytes,
        activation_bytes=activation_bytes,
    )


names = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(".".join)


@given(st.lists(st.builds(layer, names, parameter_bytes=st.integers(0, 50)), max_size=8), st.integers(1, 120))
def test_cutting_loses_nothing_and_cuts_no_more_than_must(layers: list[LayerProfile], limit: int) -> None:
    pieces = cut(layers, limit_bytes=limit)
    assert sorted(map(repr, layers)) == sorted(repr(each) for _, piece in pieces for each in piece)
    for name, piece in pieces:
        assert all(f"{each.name}.".startswith(f"{name}." if name else "") for each in piece)
        is_small = sum(each.parameter_bytes for each in piece) <= limit
        assert is_small or {each.name for each in piece} == {name}
    for name, _ in pieces:  # what holds a piece is too large to be one
        if name:
            around = name.rpartition(".")[0]
            beside = [each for each in layers if f"{each.name}.".startswith(f"{around}." if around else "")]
            assert sum(each.parameter_bytes for each in beside) > limit


def test_repeated_calls_and_sums_belong_to_their_module() -> None:
    layers = [layer(name) for name in ("a.x", "a.x#2", "a+1", "b.x", "+1")]
    assert [(name, len(piece)) for name, piece in cut(layers, limit_bytes=12000)] == [("a", 3), ("b", 1), ("", 1)]


def profile(**more: object) -> Profile:
    """24 blocks of a gigabyte of fp32 weights, an embedding and a norm, resident in 110 GiB with 2 GiB of batch."""
    layers = [layer("embedding", parameter_bytes=1 << 30, seconds=0.001, activation_bytes=1 << 26)]
    for block in range(24):
        layers += [
            layer(f"blocks.{block}.{part}", parameter_bytes=1 << 29, seconds=0.005, activation_bytes=1 << 27)
            for part in ("attention", "mixing")
        ]
    layers.append(layer("norm", parameter_bytes=1 << 14, seconds=0.001, activation_bytes=1 << 26))
    measured = {
        "family": "f",
        "kind": "h200",
        "count": 1,
        "step_seconds": 0.9,
        "peak_bytes": 110 << 30,
        "parameter_bytes": (25 << 30) + (1 << 14),
        "optimizer_bytes": 2 * ((25 << 30) + (1 << 14)),
        "layers": tuple(layers),
        "precision": "bf16-pure",
    } | more
    return Profile(**measured)  # type: ignore[arg-type]


def room(*, memory_bytes: int = 250 << 30, disk_bytes: int = 0, update: float = 4.7e9, devices: int = 1) -> SpillRoom:
    cluster = Cluster.uniform(H200, devices_per_node=devices, cores=16, memory_bytes=memory_bytes)
    node = dataclasses.replace(cluster.nodes[0], disk_bytes=disk_bytes, update_parameters_per_second=update)
    links = tuple(Link(source=a, target=b, bytes_per_second=55e9) for a, b in (("host", "h200"), ("h200", "host")))
    return SpillRoom.of(dataclasses.replace(cluster, nodes=(node,), links=links), kind=H200)


def test_blocks_become_segments_and_what_is_tiny_stays() -> None:
    found = segments(profile(), device_bytes=24 << 30, recompute=False, rates=StreamingRates())
    assert [each.name for each in found] == ["embedding", *(f"blocks.{number}" for number in range(24)), "norm"]
    assert [each.name for each in found if each.fixed] == ["norm"]
    block = found[1]
    assert block.parameters == 1 << 28
    assert (block.travel_bytes, block.gradient_bytes, block.state_bytes) == (2 << 28, 2 << 28, 12 << 28)


def test_weights_that_travel_in_fp32_are_their_own_master() -> None:
    block = segments(profile(precision="bf16"), device_bytes=24 << 30, recompute=False, rates=StreamingRates())[1]
    assert (block.travel_bytes, block.gradient_bytes, block.state_bytes) == (4 << 28, 4 << 28, 8 << 28)


def test_layers_are_stretched_to_the_steps_that_were_measured() -> None:
    rates = StreamingRates(device_update_parameters_per_second=1e20)
    for recompute, expected in ((False, 0.9), (True, 1.2)):
        found = segments(profile(), device_bytes=24 << 30, recompute=recompute, rates=rates)
        assert sum(each.forward_seconds + each.backward_seconds for each in found) == pytest.approx(expected)
    elsewhere = segments(profile(technique="spill"), device_bytes=24 << 30, recompute=False, rates=rates)
    assert sum(each.forward_seconds + each.backward_seconds for each in elsewhere) == pytest.approx(0.726)


def test_recomputing_holds_one_segment_and_the_inputs_of_all() -> None:
    kept = working_bytes(profile(), device_bytes=24 << 30, recompute=False)
    assert kept == (110 << 30) - 4 * ((25 << 30) + (1 << 14))
    recomputed = working_bytes(profile(batch_bytes=5), device_bytes=24 << 30, recompute=True)
    assert recomputed == 5 + (1 << 26) + 24 * (1 << 27) + (1 << 28)
    assert working_bytes(profile(technique="spill"), device_bytes=24 << 30, recompute=False) == recomputed - 5


def test_a_predicted_option_says_what_it_takes() -> None:
    made = predict([profile()], room=room(), device_bytes=24 << 30, recompute=True)
    assert (made.families, made.technique, made.kind, made.count) == (("f",), "spill", "h200", 1)
    assert made.knobs == {"device_bytes": 24 << 30, "recompute": True, "depth": 3}
    assert not made.measured
    assert made.device_bytes <= 24 << 30
    assert CUDA_HOST_BYTES < made.host_bytes < CUDA_HOST_BYTES + (100 << 30)
    assert made.cores == 16
    # The host's updates are what holds it up: fewer than all of 6.7 billion parameters.
    assert 1.0 < made.step_seconds[0] < 6.71e9 / 4.7e9 / 0.9 * 1.1


def test_less_memory_is_slower_and_clipping_too() -> None:
    seconds = [
        predict([profile(clips=clips)], room=room(), device_bytes=gib << 30, recompute=True).step_seconds[0]
        for gib, clips in ((64, False), (24, False), (12, False), (12, True))
    ]
    assert seconds == sorted(seconds)


def test_a_step_pays_its_share_of_evaluations_that_stream_too() -> None:
    plain = predict([profile()], room=room(), device_bytes=24 << 30, recompute=True)
    evaluating = profile(evaluate_seconds=9.0, evaluate_every=100, build_seconds=3.0, save_seconds=4.0)
    made = predict([evaluating], room=room(), device_bytes=24 << 30, recompute=True)
    assert made.start_seconds == 7.0
    share = 0.09 * plain.step_seconds[0] / 0.9
    assert made.step_seconds[0] == pytest.approx(plain.step_seconds[0] + share)


def test_a_gang_shares_the_device_and_the_host() -> None:
    one = predict([profile()], room=room(), device_bytes=12 << 30, recompute=True)
    two = predict([profile(), profile(family="g")], room=room(), device_bytes=24 << 30, recompute=True)
    assert (two.families, two.technique) == (("f", "g"), "interleave")
    assert two.device_bytes == 2 * one.device_bytes
    assert two.host_bytes == 2 * one.host_bytes - CUDA_HOST_BYTES
    assert two.step_seconds[0] == two.step_seconds[1] <= 2 * one.step_seconds[0]


def test_what_the_host_cannot_hold_goes_to_half_of_the_disk() -> None:
    with pytest.raises(DoesNotFit, match=r"needs at least .* of host memory"):
        predict([profile()], room=room(memory_bytes=64 << 30), device_bytes=12 << 30, recompute=True)
    on_disk = room(memory_bytes=64 << 30, disk_bytes=200 << 30)
    made = predict([profile()], room=on_disk, device_bytes=12 << 30, recompute=True)
    assert made.host_bytes <= 64 << 30
    assert 0 < made.disk_bytes <= 100 << 30
    assert made.knobs["disk_bytes"] == 100 << 30


def test_what_nobody_measured_is_low_and_cores_are_shared() -> None:
    assert room(update=0.0).rates.update_parameters_per_second == StreamingRates().update_parameters_per_second
    assert room(devices=4).cores == 4
    assert room(devices=4).rates.update_parameters_per_second == 4.7e9 / 4
    assert room(update=0.0, devices=4).rates.update_parameters_per_second == pytest.approx(0.4e9)
    plain = Kind(name="v100", processor="cuda")
    assert SpillRoom.of(Cluster.uniform(plain, cores=64), kind=plain).rates == StreamingRates()


def test_what_was_measured_is_taken_as_it_is() -> None:
    measured = profile(technique="spill", knobs={"device_bytes": 24 << 30}, host_bytes=90, disk_bytes=3)
    made = option(measured, kind=H200)
    assert (made.technique, made.step_seconds, made.device_bytes) == ("spill", (0.9,), 110 << 30)
    assert (made.knobs, made.host_bytes, made.disk_bytes) == ({"device_bytes": 24 << 30}, 90, 3)
    assert made.measured
    unsaid = option(profile(technique="spill"), kind=H200)
    assert unsaid.host_bytes > 4 * (25 << 30)
