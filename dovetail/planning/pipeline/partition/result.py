"""What partitioning gives: stages on devices, what they take, and why. Records only."""

import dataclasses

from dovetail.vocabulary.units import show_bytes, show_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers that live together, and the devices that each hold them; microbatches go round among the devices.

    `seconds` is how often one microbatch of the pipeline can pass: computing, summing gradients and what crosses the
    cuts, shared among the devices. `compute_seconds` is what one device computes for one microbatch. `device_bytes` is
    taken on each, with `in_flight` microbatches between forward and backward; `crossing_bytes` go on to the next stage.

    >>> Stage(layers=("a",), devices=("n0:0", "n0:1"), seconds=0.5, compute_seconds=1.0, device_bytes=10, in_flight=1,
    ...       crossing_bytes=0).replicas
    2
    """

    layers: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: float
    compute_seconds: float
    device_bytes: int
    in_flight: int
    crossing_bytes: int

    @property
    def replicas(self) -> int:
        """How many devices hold it."""
        return len(self.devices)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Stages in order. `seconds` for one microbatch is the slowest stage's; `bubble_share` is the share of the stages'
    device time in which nothing is computed, filling and draining included where there is a flush.

    `copies` equal pipelines run side by side: a stage's devices are dealt out among them in order.
    `replication_seconds` is what one stage on all devices would take, infinite where that does not fit. `complete`
    says that no other cut of the graph could do better; it is false where the graph had too many to try all.

    >>> stage = Stage(layers=("a",), devices=("n0:0",), seconds=0.5, compute_seconds=0.5, device_bytes=10, in_flight=1,
    ...               crossing_bytes=0)
    >>> one = Partition(stages=(stage,), copies=1, seconds=0.5, bubble_share=0.0, replication_seconds=0.5,
    ...                 complete=True, explanation=("There is one device.",))
    >>> one.devices
    ('n0:0',)
    """

    stages: tuple[Stage, ...]
    copies: int
    seconds: float
    bubble_share: float
    replication_seconds: float
    complete: bool
    explanation: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that has a stage, by stage."""
        return tuple(device for stage in self.stages for device in stage.devices)

    def __str__(self) -> str:
        rows = [
            f"{n:>5} {len(stage.layers):>6}  {stage.layers[0]} … {stage.layers[-1]}  ×{stage.replicas} on "
            f"{', '.join(stage.devices)}  {show_seconds(stage.seconds)}, {show_bytes(stage.device_bytes)} each"
            for n, stage in enumerate(self.stages)
        ]
        return "\n".join(["stage layers", *rows, *self.explanation])
