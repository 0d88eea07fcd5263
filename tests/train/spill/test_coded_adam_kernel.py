"""The host's kernel for moments and weights in fewer bits gives every bit of plain torch."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.train import Training
from dovetail.train.numeric import approximate_training, coded_optimizers
from dovetail.train.numeric.coded_optimizers import prepare_slots
from dovetail.train.spill import adamw_kernel, coded_adam_kernel
from dovetail.train.spill.host_updates import _kernel_of

pytestmark = pytest.mark.skipif(coded_adam_kernel.load() is None, reason="needs a C compiler")


def coded(weight: torch.Tensor, *, adamw: bool, decay: float = 0.1, way: str = "state-8bit") -> Any:
    model = nn.Module()
    model.weight = nn.Parameter(weight.clone())
    optimizer: Any = (torch.optim.AdamW if adamw else torch.optim.Adam)([model.weight], lr=1e-2, weight_decay=decay)
    made = Training(model=model, batches=[], loss=print, optimizer=optimizer, precision="bf16-pure")
    approximate_training(made, way)
    return optimizer


WAYS = ("state-8bit", "state-bf16", "weights-bf16", "state-8bit+weights-bf16", "state-bf16+weights-bf16")


@settings(max_examples=50, deadline=None)
@given(
    count=st.sampled_from([100, 4096, 4100, 5000, 70000]),
    way=st.sampled_from(WAYS),
    adamw=st.booleans(),
    half=st.booleans(),
    power=st.integers(-12, 4),
    scale=st.sampled_from([1.0, 0.37]),
    seed=st.integers(0, 1 << 30),
)
def test_every_bit_is_torchs(
    count: int, way: str, adamw: bool, half: bool, power: int, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(count, generator=generator)
    true, fast = (coded(weight, adamw=adamw, way=way) for _ in range(2))
    (expected,), (master,) = (each.param_groups[0]["params"] for each in (true, fast))
    travel = torch.zeros(count, dtype=torch.bfloat16) if master.dtype == torch.float32 else None
    pool = adamw_kernel.ThreadPool(2, library=coded_adam_kernel.load())
    for number in range(4):
        gradient = torch.randn(count, generator=generator) ** 3 * 10.0**power
        gradient[:: 7 + number] = 0.0
        gradient = gradient.bfloat16() if half else gradient
        slopes = gradient.float() * scale if scale != 1.0 else gradient.float()
        slots = true.state[expected]
        prepare_slots(slots, expected, true.moments)
        slots["step"] += 1
        numbers = true.numbers(true.param_groups[0], number + 1)
        true.update_plainly(expected.data, slopes, slots, numbers)
        group: dict[str, Any] = fast.param_groups[0]
        one = coded_adam_kernel.stretch_of(
            fast, master.data, fast.state[master], gradient=gradient, travel=travel, options=group, scale=scale
        )
        pool.update([one])
        assert torch.equal(master, expected)
        assert travel is None or torch.equal(travel, expected.bfloat16())
        for slot, value in true.state[expected].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, fast.state[master][slot]), (number, slot)
    pool.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("adamw", [True, False])
def test_a_step_by_the_kernel_is_one_by_torch(adamw: bool, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, gradient = torch.randn(80, 60), torch.randn(80, 60)
    found = []
    for by_kernel in (True, False):
        if not by_kernel:
            monkeypatch.setattr(coded_optimizers, "fast_update", lambda *_: None)
        optimizer = coded(weight, adamw=adamw, way=way)
        (one,) = optimizer.param_groups[0]["params"]
        for _ in range(3):
            one.grad = gradient
            optimizer.step()
        found.append([one.detach(), *(v for v in optimizer.state[one].values() if isinstance(v, torch.Tensor))])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_what_is_no_number_spreads_over_its_block_alone() -> None:
    optimizer = coded(torch.zeros(4096), adamw=True)
    (master,) = optimizer.param_groups[0]["params"]
    gradient = torch.ones(4096)
    gradient[300] = float("nan")
    pool = adamw_kernel.ThreadPool(1, library=coded_adam_kernel.load())
    for _ in range(2):
        one = coded_adam_kernel.stretch_of(
            optimizer, master.data, optimizer.state[master], gradient=gradient, travel=None,
            options=optimizer.param_groups[0], scale=1.0,
        )  # fmt: skip
        pool.update([one])
    pool.close()
    bad = master.isnan()
    assert bad[256:512].all()
    assert not bad[:256].any()
    assert not bad[512:].any()
    assert not optimizer.state[master]["exp_avg_scale"].isfinite()[1]


def test_the_kernel_is_chosen_by_the_optimizer() -> None:
    assert _kernel_of(coded(torch.zeros(8), adamw=True)) is coded_adam_kernel
    assert _kernel_of(torch.optim.AdamW([torch.zeros(1)])) is adamw_kernel
    assert _kernel_of(torch.optim.SGD([torch.zeros(1)], lr=0.1)) is None
