"""Spill on a CUDA device: streams, pinned memory, the host's own AdamW. Skipped elsewhere."""

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dovetail.testing import programs
from dovetail.train import INTERLEAVE, RESIDENT, SPILL, SessionMember, Training, TrainingSession
from dovetail.vocabulary import TechniqueRefused

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
WIDTH, DEPTH = 512, 8
STEPS = 50


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))
        return x + inner


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found


def tower(model: nn.Module | None = None, **options: Any) -> Training:
    model = model or Tower()
    batches = [(torch.randn(64, WIDTH), torch.randn(64, 1)) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: functional.mse_loss(model(batch[0]).float(), batch[1]),
        optimizer=optimizer,
        **options,
    )


SIZE = sum(parameter.nbytes for parameter in Tower().parameters())
TIGHT = SIZE  # the model alone, without its optimizer's state or a gradient


def member(**options: Any) -> SessionMember:
    return programs.fresh(lambda: tower(**options))


def device() -> torch.device:
    return torch.device("cuda", 0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"accumulate": 2}, {"precision": "bf16-pure"}], ids=str)
def test_streaming_is_resident_training_up_to_the_rounding_of_updates(options: Any, recompute: bool) -> None:
    resident = RESIDENT.open([member(**options)], device=device(), threads=4)
    spilled = SPILL.open(
        [member(**options)], device=device(), threads=4, knobs={"device_bytes": TIGHT, "recompute": recompute}
    )
    for _ in range(STEPS):
        expected, found = resident.advance(), spilled.advance()
    assert sum(not segment.kept for segment in spilled.segments) >= 4
    assert _distance(spilled, resident) < (1e-4 if "precision" not in options else 3e-2)
    assert float(found[0].loss) == pytest.approx(
        float(expected[0].loss), rel=1e-2 if "precision" not in options else 0.1
    )
    assert torch.cuda.max_memory_allocated() > 0
    spilled.close()
    resident.close()


@pytest.fixture(autouse=True)
def _clean() -> Any:
    yield
    gc.collect()
    torch.cuda.empty_cache()


class Careful(Tower):
    """Computes a part in full precision, and the rest under checkpoints of its own around two blocks each."""

    def __init__(self) -> None:
        super().__init__()
        self.precise = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            x = self.precise(x.float())
        for first, second in zip(self.blocks[::2], self.blocks[1::2], strict=True):
            x = checkpoint(lambda y, a=first, b=second: b(a(y)), x, use_reentrant=False)
        found: torch.Tensor = self.head(x)
        return found


def test_a_program_that_is_precise_and_recomputes_by_itself() -> None:
    def build() -> Training:
        return tower(Careful(), precision="bf16")

    resident = RESIDENT.open([programs.fresh(build)], device=device(), threads=4)
    knobs = {"device_bytes": 2 * TIGHT, "depth": 1}
    spilled = SPILL.open([programs.fresh(build)], device=device(), threads=4, knobs=knobs)
    for _ in range(10):
        expected, found = resident.advance(), spilled.advance()
    assert sum(not segment.kept for segment in spilled.segments) >= 2
    assert float(found[0].loss) == pytest.approx(float(expected[0].loss), rel=1e-2)
    assert _distance(spilled, resident) < 1e-4
    spilled.close()
    resident.close()


def test_what_is_kept_is_updated_as_resident_would() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        resident = RESIDENT.open([member()], device=device(), threads=4)
        spilled = SPILL.open([member()], device=device(), threads=4, knobs={"device_bytes": 40 * SIZE})
        for _ in range(5):
            resident.advance()
            spilled.advance()
        assert all(segment.kept for segment in spilled.segments)
        assert _distance(spilled, resident) < 1e-5  # the first step's updates were the host's
        spilled.close()
    finally:
        torch.use_deterministic_algorithms(False)


def test_it_stays_within_its_budget() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    session = SPILL.open([member()], device=device(), threads=4, knobs={"device_bytes": 2 * SIZE})
    for _ in range(4):
        session.advance()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 2 * SIZE
    assert any(segment.kept and not segment.fixed for segment in session.segments)
    assert session.forecast().pace is not None
    session.close()


def test_a_budget_that_is_too_small_is_refused_with_numbers() -> None:
    with pytest.raises(TechniqueRefused, match=r"needs at least .* on the device"):
        SPILL.open([member()], device=device(), threads=4, knobs={"device_bytes": SIZE // 16})


def test_a_gang_trains_as_its_members_do_alone() -> None:
    gang = [programs.fresh(tower, seed=seed) for seed in range(3)]
    together = INTERLEAVE.open(gang, device=device(), threads=4, knobs={"device_bytes": 3 * SIZE})
    found = [[float(report.loss) for report in together.advance(range(3))] for _ in range(5)]
    assert together.forecast().pace is not None
    together.close()
    for seed in range(3):
        alone = SPILL.open(
            [programs.fresh(tower, seed=seed)], device=device(), threads=4, knobs={"device_bytes": TIGHT}
        )
        expected = [float(alone.advance()[0].loss) for _ in range(5)]
        alone.close()
        assert [row[seed] for row in found] == pytest.approx(expected, rel=1e-3)


def _distance(one: TrainingSession, other: TrainingSession) -> float:
    """How far apart the parameters are, relative to their norm."""
    first, second = one.state().tensors, other.state().tensors
    names = [name for name in first if name.startswith("model/")]
    apart = sum(float((first[n].cpu().double() - second[n].cpu().double()).square().sum()) for n in names)
    return (apart / sum(float(second[n].cpu().double().square().sum()) for n in names)) ** 0.5
