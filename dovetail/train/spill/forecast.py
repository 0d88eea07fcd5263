"""What a spilled step will take, before it is taken: from the segments' own times and the rates of this machine."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.planning.techniques.spill import Layout, Pace, Segment, Spilled, StreamingRates, step_seconds

_PROBE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Device bytes, host bytes (pinned among them) and the pace of a step.

    >>> Forecast(device_bytes=1, host_bytes=2, pinned_bytes=1, disk_bytes=0).pace is None
    True
    """

    device_bytes: int
    host_bytes: int
    pinned_bytes: int
    disk_bytes: int
    pace: Pace | None = None


def with_times(segments: Sequence[Segment], seconds: Mapping[str, tuple[float, float]]) -> tuple[Segment, ...]:
    """The segments with their measured seconds; one that was not seen takes none."""
    return tuple(
        dataclasses.replace(
            segment,
            forward_seconds=seconds.get(segment.name, (0.0, 0.0))[0],
            backward_seconds=seconds.get(segment.name, (0.0, 0.0))[1],
        )
        for segment in segments
    )


def pace(members: Sequence[tuple[Sequence[Segment], Layout, int]], *, rates: StreamingRates, clip: bool) -> Pace:
    """The pace of a gang of (segments, layout, accumulate)."""
    gang = [Spilled(segments=tuple(s), layout=where, accumulate=accumulate) for s, where, accumulate in members]
    return step_seconds(gang, rates=rates, clip=clip)


def link_rates(device: torch.device, buffer: torch.Tensor | None) -> dict[str, float]:
    """How fast bytes go up and down between a pinned buffer and the device; nothing without either."""
    if device.type != "cuda" or buffer is None or not buffer.nbytes:
        return {}
    host = buffer[:_PROBE_BYTES]
    there = torch.empty_like(host, device=device)
    return {
        "up_bytes_per_second": _rate(there, host, device),
        # Into a copy of its own: what the buffer holds is a model's.
        "down_bytes_per_second": _rate(torch.empty_like(host).pin_memory(), there, device),
    }


def _rate(target: Any, source: Any, device: torch.device) -> float:
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(8):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    return float(8 * source.nbytes / (time.perf_counter() - start))
