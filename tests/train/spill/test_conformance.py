"""Spill holds what every technique must, at every budget, and is bit-equal to resident on one processor."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.planning.techniques.spill import DoesNotFit, Layout, Segment, layout
from dovetail.testing import programs
from dovetail.testing.techniques import STEPS, TechniqueConformance
from dovetail.train import RESIDENT, SPILL, SessionMember, Training, TrainingSession, TrainingState, checkpoint
from dovetail.train.spill import SpillSession, parked_inputs, resident_segments

CPU = torch.device("cpu")
# More than the least that a program needs, in bytes, and the knobs beside it.
KNOBS: dict[str, tuple[int, dict[str, Any]]] = {
    "tight": (0, {"depth": 1}),
    "recompute": (0, {"depth": 2, "recompute": True}),
    "offload": (0, {"depth": 2, "recompute": True}),
    "some kept": (2048, {"depth": 1}),
    "deep": (0, {"depth": 3}),
    "all kept": (1 << 30, {}),
}


def spill(members: Sequence[SessionMember], knobs: str = "tight", *, device: torch.device = CPU) -> SpillSession:
    """With the smallest budget that these members can have, and what the knobs add to it."""
    more, others = KNOBS[knobs]
    budget = 1
    while True:
        try:
            SPILL.open(members, device=device, threads=1, knobs={"device_bytes": budget, **others}).close()
        except DoesNotFit as error:
            budget = error.needed_bytes
        else:
            break
    session = SPILL.open(members, device=device, threads=1, knobs={"device_bytes": budget + more, **others})
    if knobs == "offload":
        session._park()  # as it does by itself where the inputs of recomputed segments do not fit
    return session


@pytest.fixture(autouse=True)
def _stream_what_can_be(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    # Of models this small, all is kept within less than what streaming takes, so tight budgets alone keep it.
    found = _knobs_of(request)
    monkeypatch.setattr(parked_inputs, "_LEAST_BYTES", 0)
    if found in ("tight", "recompute", "offload", "deep"):
        monkeypatch.setattr(resident_segments, "layout", _only_fixed)


def _knobs_of(request: pytest.FixtureRequest) -> str:
    call = getattr(request.node, "callspec", None)
    return str(getattr(request.cls, "knobs", None) or (call and call.params.get("knobs")) or "tight")


def _only_fixed(segments: Sequence[Segment], **budgets: Any) -> Layout:
    return dataclasses.replace(layout(segments, **budgets), kept=frozenset(s.name for s in segments if s.fixed))


class _WithKnobs(TechniqueConformance):
    technique = SPILL
    knobs = "tight"

    def _session(self, members: Sequence[SessionMember]) -> TrainingSession:
        return spill(members, self.knobs, device=self.device)


class TestEverythingStreams(_WithKnobs):
    """The smallest budget there is."""

    knobs = "tight"


class TestRecomputing(_WithKnobs):
    """Every segment's activations are computed again in backward."""

    knobs = "recompute"


class TestWithoutABudget(_WithKnobs):
    """What fits is kept."""

    knobs = "all kept"


# Against resident


class Odd(nn.Module):
    """A parameter of its own, a module called twice, one whose weights are read by torch's own attention, a weight
    that is shared between two modules, a part that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.inward = nn.Linear(4, 16)
        self.twice = nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.1)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.twice.weight
        self.never = nn.Linear(16, 16)
        self.outward = nn.Linear(16, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        x = torch.tanh(self.inward(x) * self.scale)
        x = self.twice(x) + self.twice(x * 2)
        x = x + self.attention(x[None], x[None], x[None])[0][0]
        found: torch.Tensor = self.outward(self.tied(x))
        return found


class Reading(nn.Module):
    """Reads the weights of modules that it never calls, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.body, self.outward = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.read, self.frozen = nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.linear(torch.tanh(self.body(self.inward(x))), self.read.weight, self.read.bias)
        found: torch.Tensor = self.outward(torch.tanh(x @ self.frozen.weight))
        return found


def reading() -> Training:
    model = Reading()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    return Training(model=model, batches=programs.pairs(4), loss=_squared, optimizer=optimizer)


class Adapted(nn.Module):
    """A frozen weight and two trained ones in each block, as adapters have it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.tanh(self.base(x) + self.up(self.down(x)))
        return found


def adapted() -> Training:
    model = nn.Sequential(nn.Linear(4, 16), *(Adapted() for _ in range(5)), nn.Linear(16, 1))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    return Training(model=model, batches=programs.pairs(4), loss=_squared, optimizer=optimizer)


class Routed(nn.Module):
    """Uses one of its two weights, and the other never."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Parameter(torch.randn(16, 16) / 4), nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.used)


class Tower(nn.Module):
    """Blocks that are called by keyword, whose first is read again after it was called."""

    def __init__(self, *, read: bool) -> None:
        super().__init__()
        self.inward, self.outward, self.read = nn.Linear(4, 16), nn.Linear(16, 1), read
        self.blocks = nn.ModuleList(Routed() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        for block in self.blocks:
            x = block(x=x)
        if self.read:
            x = torch.tanh(x @ self.blocks[0].used)
        found: torch.Tensor = self.outward(x)
        return found


def routed(*, read: bool = False) -> Training:
    model = Tower(read=read)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Training(model=model, batches=programs.pairs(4), loss=_squared, optimizer=optimizer)


class Turns(nn.Module):
    """Every other batch goes another way, so that some parameters have gradients in some microbatches only."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(4, 16), nn.Linear(16, 1)
        self.ways = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        way = int(x[0, 0] * 100) % 3
        found: torch.Tensor = self.outward(torch.tanh(self.ways[way](self.inward(x))))
        return found


def turns(**options: Any) -> Training:
    model = Turns()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Training(model=model, batches=programs.pairs(12), loss=_squared, optimizer=optimizer, **options)


def odd(*, precision: str = "fp32", **options: Any) -> Training:
    model = Odd()
    trained = [parameter for name, parameter in model.named_parameters() if "never" not in name]
    rest = list(model.never.parameters())
    optimizer = torch.optim.AdamW([{"params": trained}, {"params": rest, "weight_decay": 0.5}], lr=1e-2)
    return Training(
        model=model, batches=programs.pairs(4), loss=_squared, optimizer=optimizer, precision=precision, **options
    )


def _squared(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]).float(), batch[1])


def optimizers(name: str) -> Training:
    model = programs.perceptron(dropout=0.1)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
    return Training(model=model, batches=programs.pairs(3), loss=programs.squared, optimizer=optimizer, clip_norm=0.05)


BUILDS: dict[str, str | Callable[[], Training]] = {
    **{name: name for name in programs.PROGRAMS if name not in ("adversarial", "averaged", "fp16")},
    "odd": odd,
    "reading": reading,
    "adapted": adapted,
    "routed": routed,
    "routed and read": functools.partial(routed, read=True),
    "turns": turns,
    "turns accumulated": functools.partial(turns, accumulate=3),
    "turns accumulated and clipped": functools.partial(turns, accumulate=3, clip_norm=0.1),
    "odd bf16": functools.partial(odd, precision="bf16"),
    "odd bf16-pure": functools.partial(odd, precision="bf16-pure"),
    "odd clipped": functools.partial(odd, clip_norm=0.01),
    "odd accumulated and clipped": functools.partial(odd, clip_norm=0.01, accumulate=2),
    "pure accumulated": functools.partial(odd, accumulate=2, precision="bf16-pure"),
    **{
        name: functools.partial(optimizers, name)
        for name in ("Adam", "NAdam", "RAdam", "Adagrad", "RMSprop", "Adadelta", "Adamax", "Adafactor", "ASGD", "Rprop")
    },
}


@pytest.mark.parametrize("knobs", sorted(KNOBS))
@pytest.mark.parametrize("build", sorted(BUILDS))
def test_spill_and_resident_agree_bit_by_bit(build: str, knobs: str) -> None:
    resident, expected = _resident(build)
    session = spill([programs.fresh(BUILDS[build])], knobs)
    assert knobs == "some kept" or all(s.kept == (s.fixed or knobs == "all kept") for s in session.segments)
    assert any(not s.kept for s in session.segments) or knobs in ("some kept", "all kept")
    spilled, losses = _run(session, STEPS)
    assert losses == expected
    _assert_equal(spilled, resident)


@pytest.mark.parametrize("build", ["dropout", "odd bf16-pure", "odd accumulated and clipped", "norm"])
def test_each_goes_on_from_the_other(build: str, tmp_path: Path) -> None:
    def opened(spilled: bool) -> TrainingSession:
        member = programs.fresh(BUILDS[build])
        return spill([member]) if spilled else RESIDENT.open([member], device=CPU, threads=1)

    whole, expected = _run(opened(False), STEPS)
    for first in (True, False):
        before, one = _run(opened(first), 3)
        path, _ = checkpoint.write(tmp_path / str(first), before, task="t", attempt=1)
        second = opened(not first)
        second.load(checkpoint.read(path))
        after, two = _run(second, STEPS - 3)
        assert one + two == expected
        _assert_equal(after, whole)


@functools.cache
def _resident(build: str) -> tuple[TrainingState, list[float]]:
    return _run(RESIDENT.open([programs.fresh(BUILDS[build])], device=CPU, threads=1), STEPS)


def _run(session: TrainingSession, steps: int) -> tuple[TrainingState, list[float]]:
    with contextlib.closing(session):
        losses = [float(session.advance()[0].loss) for _ in range(steps)]
        state = session.state()
        # Closing a session moves what its state points at.
        tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    return dataclasses.replace(state, tensors=tensors), losses


def _assert_equal(found: TrainingState, expected: TrainingState) -> None:
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name
    assert found.values == expected.values
