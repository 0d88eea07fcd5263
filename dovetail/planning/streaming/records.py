"""What streams: segments of a model, where each lives, at which rates they move, and the pace that comes of it."""

import dataclasses

# Copies read and write the host's memory too: beside them, an update has about a tenth less of it (measured with 16
# cores and 55 GB/s each way). They run through nearly all of a step, so all updates are taken to be slowed.
CONTENDED = 0.9
# Gradients of one segment are written while those of the one before travel.
GRADIENT_ROOM = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a model that moves as one; a model's segments come in the order of its forward pass.

    `parameters` are the trainable elements, `travel_bytes` what is copied up, `gradient_bytes` what comes back, and
    `state_bytes` what an update reads and writes besides (fp32 weights where those that travel are not, and the
    optimizer's slots). `backward_seconds` includes recomputation where it is done. A `fixed` one is always kept.

    >>> Segment(name="blocks.0", parameters=10, travel_bytes=20, gradient_bytes=20, state_bytes=120).fixed
    False
    """

    name: str
    parameters: int
    travel_bytes: int
    gradient_bytes: int
    state_bytes: int
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    fixed: bool = False

    @property
    def host_bytes(self) -> int:
        """What it takes on the host where it streams."""
        return self.travel_bytes + self.gradient_bytes + self.state_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each segment lives and what that takes: `kept` ones are on the device with their state, the state of those
    `on_disk` is on disk, all else is on the host. `depth` streamed segments have room on the device at once.

    >>> Layout(kept=frozenset({"head"}), on_disk=frozenset(), device_bytes=8, host_bytes=4, pinned_bytes=2,
    ...        disk_bytes=0, depth=2).depth
    2
    """

    kept: frozenset[str]
    on_disk: frozenset[str]
    device_bytes: int
    host_bytes: int
    pinned_bytes: int
    disk_bytes: int
    depth: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamingRates:
    """How fast bytes move and updates go. The defaults stand for what nobody measured, and are low on purpose: PCIe 3
    with 16 lanes, a host with two channels of memory, a device with 320 GB/s, a SATA disk.

    `update_parameters_per_second` is what the host's cores do alone; beside copies it is `contended` times that.

    >>> StreamingRates(up_bytes_per_second=55e9).contended
    0.9
    """

    up_bytes_per_second: float = 10e9
    down_bytes_per_second: float = 10e9
    update_parameters_per_second: float = 1e9
    device_update_parameters_per_second: float = 10e9
    disk_bytes_per_second: float = 0.4e9
    contended: float = CONTENDED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """One member of a gang: its segments, where they live, and how many batches a step takes.

    >>> nowhere = Layout(kept=frozenset(), on_disk=frozenset(), device_bytes=0, host_bytes=0, pinned_bytes=0,
    ...                  disk_bytes=0, depth=0)
    >>> Spilled(segments=(), layout=nowhere).accumulate
    1
    """

    segments: tuple[Segment, ...]
    layout: Layout
    accumulate: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The seconds in which every member of a gang takes one step, and for how long of them each resource is busy.

    `roofline_seconds` is the busiest resource alone, updates without copies beside them: no order of the same work is
    faster.

    >>> Pace(seconds=1.5, roofline_seconds=1.2, compute_seconds=0.7, up_seconds=0.4, down_seconds=0.2,
    ...      update_seconds=1.3).seconds
    1.5
    """

    seconds: float
    roofline_seconds: float
    compute_seconds: float
    up_seconds: float
    down_seconds: float
    update_seconds: float
