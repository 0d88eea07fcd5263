"""What is assumed of a pipeline while it is planned (what overlaps, which weights are kept, what a device must hold),
and what partitioning gives: stages on devices, what they take, and why.

The formulas work on numbers and on whole arrays alike, so planning and judging one plan use the same.
"""

import dataclasses
from typing import Any

from dovetail.vocabulary import InvalidRecord
from dovetail.vocabulary.units import show_bytes, show_seconds

_WEIGHTS = ("flush", "stashing", "double_buffered")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a pipeline is to run.

    Activations are sent beside computing, and gradients summed while nothing is computed, as PipeDream takes it. Both
    go through the same ports.
    `weights`: one version and a flush after each step (`flush`), a version for each microbatch in flight (`stashing`),
    or two (`double_buffered`, 2BW). `microbatches` of one step, for the modes that have steps: flush and 2BW.
    `state_bytes_per_parameter_byte`: what the optimizer keeps, 2 for AdamW. `recompute`: of a microbatch in flight only
    the stage's input is kept, and forward runs again in backward."""

    weights: str = "stashing"
    microbatches: int | None = None
    state_bytes_per_parameter_byte: float = 2.0
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.weights not in _WEIGHTS:
            raise InvalidRecord(f"weights must be one of {_WEIGHTS}, got {self.weights!r}.")
        if self.weights == "stashing" and self.microbatches is not None:
            raise InvalidRecord("stashing updates after every round and has no steps; leave microbatches out.")
        if self.weights != "stashing" and (self.microbatches is None or self.microbatches < 1):
            raise InvalidRecord(
                f"weights {self.weights!r} update once in a step, so microbatches must be at least 1, "
                f"got {self.microbatches}."
            )


def in_flight(terms: Terms, *, devices: int, width: int) -> int:
    """How many microbatches one replica holds at most between forward and backward: as many as keep busy the `devices`
    of this stage and the later ones, of which this stage has `width`.

    >>> in_flight(Terms(), devices=5, width=2), in_flight(Terms(weights="flush", microbatches=2), devices=5, width=1)
    (3, 2)
    """
    held = -(-devices // width)
    return held if terms.microbatches is None else min(held, terms.microbatches)


def stage_bytes(
    terms: Terms, *, held: int, parameters: Any, activations: Any, arriving: Any, versions: int | None = None
) -> Any:
    """What a stage takes on each of its devices: weight versions, gradients, optimizer state, and what it keeps of each
    of the `held` microbatches: all activations, or with recomputation what arrives, and all of one.

    `versions` are as many as the terms' weights need, unless a timetable says.

    >>> stage_bytes(Terms(), held=2, parameters=100, activations=10, arriving=1)
    520.0
    """
    versions = versions or {"flush": 1, "stashing": held, "double_buffered": 2}[terms.weights]
    kept = held * arriving + activations if terms.recompute else held * activations
    return parameters * (versions + 1 + terms.state_bytes_per_parameter_byte) + kept


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
    """Stages in order. `seconds` for one microbatch is the slowest stage's, or that of the port at which all of them
    send and receive most; `bubble_share` is the share of the stages'
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
