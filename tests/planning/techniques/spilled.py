"""Spilled models for tests: hand-written ones of the sizes that were measured, and a strategy for any."""

import dataclasses

from hypothesis import strategies as st

from dovetail.planning.streaming import Layout, Segment, Spilled, StreamingRates
from dovetail.planning.techniques.spill import layout

#: One H200 and its 16-core host, as measured.
H200 = StreamingRates(
    up_bytes_per_second=55e9,
    down_bytes_per_second=55e9,
    update_parameters_per_second=4.7e9,
    device_update_parameters_per_second=100e9,
    disk_bytes_per_second=2e9,
)


def segment(name: str, parameters: int, *, forward_seconds: float = 0.0, **more: object) -> Segment:
    """Weights and gradients that travel in bf16, AdamW with fp32 weights; backward is thrice forward."""
    chosen = {
        "travel_bytes": 2 * parameters,
        "gradient_bytes": 2 * parameters,
        "state_bytes": 12 * parameters,
        "backward_seconds": 3 * forward_seconds,
    } | more
    return Segment(name=name, parameters=parameters, forward_seconds=forward_seconds, **chosen)  # type: ignore[arg-type]


def model(embedding: int, blocks: int, block: int, *, seconds: float) -> tuple[Segment, ...]:
    """An embedding, blocks and a head, whose step computes for so long."""
    sizes = [embedding, *[block] * blocks, embedding]
    return tuple(
        segment(f"{number}", size, forward_seconds=seconds / 4 * size / sum(sizes)) for number, size in enumerate(sizes)
    )


#: 6.86 billion parameters, batch 8 × 1024.
LARGE = model(206_000_000, 32, 201_600_000, seconds=0.75)
#: 1.4 billion parameters, batch 8 × 1024.
SMALL = model(103_000_000, 24, 50_000_000, seconds=0.16)


def spilled(segments: tuple[Segment, ...], *, gib: float, working_gib: float = 1.0, clip: bool = False) -> Spilled:
    """A member within a device budget on a host without limits."""
    where = layout(
        segments,
        device_bytes=int(gib * 2**30),
        host_bytes=1 << 50,
        working_bytes=int(working_gib * 2**30),
        holds_gradients=clip,
    )
    return Spilled(segments=segments, layout=where)


def streamed(segments: tuple[Segment, ...], *, kept: int = 0, depth: int = 2, accumulate: int = 1) -> Spilled:
    """A member of which so many segments are kept, whatever that takes."""
    where = Layout(
        kept=frozenset(each.name for each in segments[:kept]),
        on_disk=frozenset(),
        device_bytes=0,
        host_bytes=0,
        pinned_bytes=0,
        disk_bytes=0,
        depth=min(depth, len(segments) - kept),
    )
    return Spilled(segments=segments, layout=where, accumulate=accumulate)


_bytes = st.integers(0, 100)
_seconds = st.floats(0, 1, allow_subnormal=False)


@st.composite
def segments(draw: st.DrawFn, *, most: int = 8) -> tuple[Segment, ...]:
    """A few segments of a few bytes."""
    return tuple(
        Segment(
            name=f"{number}",
            parameters=draw(st.integers(0, 50)),
            travel_bytes=draw(_bytes),
            gradient_bytes=draw(_bytes),
            state_bytes=draw(_bytes),
            forward_seconds=draw(_seconds),
            backward_seconds=draw(_seconds),
            fixed=draw(st.sampled_from([False, False, False, True])),
        )
        for number in range(draw(st.integers(1, most)))
    )


@st.composite
def members(draw: st.DrawFn) -> Spilled:
    """A member with any number of segments kept and any depth."""
    found = draw(segments())
    kept, depth = draw(st.integers(0, len(found))), draw(st.integers(1, 4))
    member = streamed(found, kept=kept, depth=depth, accumulate=draw(st.sampled_from([1, 1, 1, 2, 3])))
    on_disk = frozenset(each.name for each in found[kept:] if draw(st.booleans()))
    return dataclasses.replace(member, layout=dataclasses.replace(member.layout, on_disk=on_disk))


_rate = st.sampled_from([10.0, 50.0, 200.0])
any_rates = st.builds(
    StreamingRates,
    up_bytes_per_second=_rate,
    down_bytes_per_second=_rate,
    update_parameters_per_second=_rate,
    device_update_parameters_per_second=st.just(1e4),
    disk_bytes_per_second=_rate,
)
