"""Small models, and how to spill them so that next to nothing of them stays on the device."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from dovetail.planning.techniques.spill import DoesNotFit, Layout, Segment, layout
from dovetail.testing import programs
from dovetail.train import RESIDENT, SPILL, Training, TrainingSession, TrainingState
from dovetail.train.spill import SpillSession, resident_segments

CPU = torch.device("cpu")
WIDTH = 8
Build = Callable[[], Training]


class Tower(nn.Module):
    """Linear layers of one size, each a segment of 1 KiB, and a head that takes as much."""

    def __init__(self, layers: int = 6, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        found: torch.Tensor = self.head(x)
        return found


class Precise(Tower):
    """Computes a part in full precision, whatever is around."""

    def __init__(self) -> None:
        super().__init__()
        self.precise = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = self.precise(x.float())
        return super().forward(x)


def training(
    model: nn.Module, *, width: int = WIDTH, optimizer: Any = None, batches: int = 4, **others: Any
) -> Training:
    """Of any model from rows of `width` to one number."""
    options: dict[str, Any] = {
        "model": model,
        "batches": [(torch.randn(8, width), torch.randn(8, 1)) for _ in range(batches)],
        "loss": squared,
        "optimizer": (optimizer or adamw)(model.parameters()),
    }
    return Training(**options | others)


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    """In float32, whatever the model computes in."""
    return functional.mse_loss(model(batch[0]).float(), batch[1])


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


@contextlib.contextmanager
def streaming() -> Iterator[None]:
    """Within, sessions keep only what is fixed. Of models this small, all is kept in less than what streaming takes."""

    def only_fixed(segments: Sequence[Segment], **budgets: Any) -> Layout:
        return dataclasses.replace(layout(segments, **budgets), kept=frozenset(s.name for s in segments if s.fixed))

    with mock.patch.object(resident_segments, "layout", only_fixed):
        yield


def spilled(build: Build, *, device_bytes: int = 1, depth: int = 1, **knobs: Any) -> SpillSession:
    """A session with all that can be streaming, in at least these bytes. The fewer, the smaller the segments."""
    with streaming():
        while True:
            try:
                member = programs.fresh(build)
                return SPILL.open(
                    [member], device=CPU, threads=1, knobs={"device_bytes": device_bytes, "depth": depth, **knobs}
                )
            except DoesNotFit as error:
                device_bytes = max(device_bytes + 1, error.needed_bytes)


def resident(build: Build) -> TrainingSession:
    """The same training, whole on the CPU."""
    return RESIDENT.open([programs.fresh(build)], device=CPU, threads=1)


def run(session: TrainingSession, steps: int) -> tuple[list[float], TrainingState]:
    """The losses of some steps, and where they led."""
    losses = [float(session.advance()[0].loss) for _ in range(steps)]
    return losses, session.state()


def assert_same(found: TrainingState, expected: TrainingState) -> None:
    """Bit by bit."""
    assert found.tensors.keys() == expected.tensors.keys()
    differ = [name for name, tensor in expected.tensors.items() if not torch.equal(found.tensors[name], tensor)]
    assert not differ
    assert found.values == expected.values


def assert_trains_as_resident(session: SpillSession, build: Build, *, steps: int = 4) -> None:
    """Losses and state are those of resident training; the session is closed."""
    expected = run(resident(build), steps)
    try:
        losses, state = run(session, steps)
        assert losses == expected[0]
        assert_same(state, expected[1])
    finally:
        session.close()
