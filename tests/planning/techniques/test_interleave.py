"""How long a step of one or several spilled models takes: laws that hold for any, and figures of those measured."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning.streaming import CONTENDED, Pace, Spilled, StreamingRates, step_seconds
from dovetail.planning.techniques.interleave import option
from dovetail.planning.techniques.spill import layout
from dovetail.vocabulary import Kind, Profile

from .spilled import H200, LARGE, SMALL, any_rates, members, segment, segments, spilled, streamed

ROUNDING = 1 + 1e-9
gangs = st.lists(members(), min_size=1, max_size=3)


def busy_seconds(pace: Pace) -> float:
    return pace.compute_seconds + pace.up_seconds + pace.down_seconds + pace.update_seconds


def largest_update_seconds(member: Spilled, rates: StreamingRates) -> float:
    streaming = [each for each in member.segments if each.name not in member.layout.kept]
    on_disk = [2 * each.state_bytes / rates.disk_bytes_per_second for each in streaming]
    return max(
        [0.0, *on_disk, *(each.parameters / rates.update_parameters_per_second / CONTENDED for each in streaming)]
    )


@given(gangs, any_rates, st.booleans())
def test_no_faster_than_the_roofline_and_no_slower_than_one_thing_at_a_time(
    gang: list[Spilled], rates: StreamingRates, clip: bool
) -> None:
    pace = step_seconds(gang, rates=rates, clip=clip)
    assert pace.roofline_seconds <= pace.seconds <= busy_seconds(pace) * ROUNDING
    assert max(pace.compute_seconds, pace.up_seconds, pace.down_seconds) <= pace.roofline_seconds
    assert pace == step_seconds(gang, rates=rates, clip=clip)


@given(members(), any_rates)
def test_clipping_is_never_faster(member: Spilled, rates: StreamingRates) -> None:
    free, clipped = (step_seconds([member], rates=rates, clip=clip).seconds for clip in (False, True))
    # But for an update under way when the gradients land that the next forward waits for: waiting avoids that.
    assert clipped >= free / ROUNDING - largest_update_seconds(member, rates)


@given(segments(), any_rates, st.integers(1, 4), st.data())
def test_keeping_one_more_segment_is_never_slower_but_for_its_update(
    found: tuple[object, ...], rates: StreamingRates, depth: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, len(found) - 1))
    fewer, more = (step_seconds([streamed(found, kept=n, depth=depth)], rates=rates) for n in (kept, kept + 1))
    on_device = found[kept].parameters / rates.device_update_parameters_per_second
    assert more.seconds <= fewer.seconds * ROUNDING + on_device + 1e-9


@given(members(), any_rates, st.booleans(), st.integers(2, 4))
def test_equal_members_together_are_no_slower_than_one_after_another(
    member: Spilled, rates: StreamingRates, clip: bool, count: int
) -> None:
    alone = step_seconds([member], rates=rates, clip=clip).seconds
    assert step_seconds([member] * count, rates=rates, clip=clip).seconds <= count * alone * 1.0001 + 1e-9


def test_a_model_that_is_kept_whole_computes_and_updates() -> None:
    whole = spilled(SMALL, gib=40)
    pace = step_seconds([whole], rates=H200)
    assert pace.seconds == pytest.approx(0.16 + 1.406e9 / 100e9)
    assert (pace.up_seconds, pace.down_seconds, pace.update_seconds) == (0, 0, 0)


SLOW = StreamingRates(up_bytes_per_second=10.0, down_bytes_per_second=5.0, update_parameters_per_second=2.0)


def test_of_one_segment_nothing_overlaps() -> None:
    # Up, forward, backward (it is still there), down, update.
    pace = step_seconds([streamed((segment("a", 10, forward_seconds=1.0),))], rates=SLOW)
    assert pace.seconds == pytest.approx(20 / 10 + 4.0 + 20 / 5 + 10 / 2 / CONTENDED)
    assert pace.roofline_seconds == pytest.approx(5.0)


def test_the_last_segments_are_not_copied_up_again() -> None:
    found = tuple(segment(name, 10) for name in "abcd")
    copies = [step_seconds([streamed(found, depth=depth)], rates=SLOW).up_seconds / 2 for depth in (1, 2, 3, 4)]
    assert copies == pytest.approx([7, 6, 5, 4])


def test_forward_waits_for_its_own_update_only() -> None:
    # The second segment has the long update; the first computes for as long as that takes.
    first, second = segment("a", 0, forward_seconds=9.0), segment("b", 10, travel_bytes=0, gradient_bytes=0)
    pace = step_seconds([streamed((first, second))], rates=SLOW)
    assert pace.seconds == pytest.approx(pace.compute_seconds)


def test_state_on_disk_is_read_and_written_for_each_update() -> None:
    member = streamed((segment("a", 10),))
    on_disk = dataclasses.replace(member, layout=dataclasses.replace(member.layout, on_disk=frozenset("a")))
    rates = dataclasses.replace(SLOW, disk_bytes_per_second=4.0)
    assert step_seconds([on_disk], rates=rates).update_seconds == 2 * 120 / 4


def test_batches_of_a_step_travel_each_and_are_updated_once() -> None:
    found = (segment("a", 10, forward_seconds=1.0), segment("b", 10, forward_seconds=1.0))
    one, three = (step_seconds([streamed(found, accumulate=count)], rates=SLOW) for count in (1, 3))
    assert three.compute_seconds == pytest.approx(3 * one.compute_seconds)
    assert three.down_seconds == pytest.approx(3 * one.down_seconds)
    assert one.update_seconds < three.update_seconds < 3 * one.update_seconds
    assert three.seconds > one.seconds


def test_the_figures_of_a_large_model() -> None:
    """6.86 billion parameters on one H200: what the probe and the roofline of the issue lead to expect."""
    paces = {gib: step_seconds([spilled(LARGE, gib=gib, working_gib=5)], rates=H200) for gib in (8, 16, 24, 48, 120)}
    assert 1.3 < paces[24].seconds < 1.6
    assert 1.5 < paces[8].seconds < 1.8
    assert paces[24].seconds / paces[8].seconds > 0.7
    assert paces[120].seconds == pytest.approx(0.75 + 6.863e9 / 100e9, rel=0.01)
    slower_to_faster = [paces[gib].seconds for gib in (8, 16, 24, 48, 120)]
    assert slower_to_faster == sorted(slower_to_faster, reverse=True)


def test_with_clipping_models_together_beat_one_after_another() -> None:
    """Four of 1.4 billion parameters: one is updated while others compute. Alone, each had four times the memory."""
    together = step_seconds([spilled(SMALL, gib=2, clip=True)] * 4, rates=H200, clip=True)
    alone = step_seconds([spilled(SMALL, gib=2, clip=True)], rates=H200, clip=True)
    alone_with_all = step_seconds([spilled(SMALL, gib=8, clip=True)], rates=H200, clip=True)
    assert together.seconds * 1.25 < 4 * alone.seconds
    assert together.seconds * 1.1 < 4 * alone_with_all.seconds
    assert together.roofline_seconds > 0.85 * together.seconds


def test_members_that_differ_share_what_neither_needs_alone() -> None:
    computes = streamed((segment("a", 0, forward_seconds=1.0),))
    updates = streamed((segment("a", 8, travel_bytes=0, gradient_bytes=0),))
    assert step_seconds([computes, updates], rates=SLOW).seconds == pytest.approx(8 / 2 / CONTENDED)


def test_a_gang_of_equal_members_that_was_measured() -> None:
    profile = Profile(family="f", kind="h200", count=1, step_seconds=2.0, peak_bytes=8, technique="interleave")
    kind = Kind(name="h200", processor="cuda")
    made = option(
        dataclasses.replace(profile, knobs={"members": 4, "depth": 2}, host_bytes=90, disk_bytes=5), kind=kind
    )
    assert (made.families, made.step_seconds) == (("f",) * 4, (2.0,) * 4)
    assert (made.technique, made.device_bytes, made.host_bytes, made.disk_bytes) == ("interleave", 8, 90, 5)
    assert (made.measured, made.knobs) == (True, {"depth": 2})
    assert len(option(profile, kind=kind).families) == 2


def test_a_layout_paces_a_model_whatever_it_keeps() -> None:
    fixed = (segment("a", 5, fixed=True), segment("b", 9, forward_seconds=1.0), segment("c", 2, fixed=True))
    where = layout(fixed, device_bytes=18 + 14 * 7 + 18 + 2 * 18, host_bytes=1 << 40, working_bytes=0)
    assert where.kept == {"a", "c"}
    assert step_seconds([Spilled(segments=fixed, layout=where)], rates=SLOW).update_seconds == pytest.approx(9 / 1.8)
