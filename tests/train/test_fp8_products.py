"""Products in 8 bits: the fast form equals the true one, and both are near the exact product."""

import copy
import dataclasses
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.train import RESIDENT, SessionMember, Training, fp8_products
from dovetail.train.fp8_products import (
    ACTIVATIONS,
    GRADIENTS,
    TRUE_FORMS,
    Forms,
    ScaledLinear,
    ScaledProducts,
    fast_forms,
    multiply_true,
    quantise_both,
    quantise_rows,
    refuse_products,
)
from dovetail.train.graph import GRAPH
from dovetail.train.numeric import open_session
from dovetail.vocabulary import ProgramError, TechniqueRefused

FAST = fast_forms(torch.device("cpu"))
# Until 2.12 torch multiplied by scales of rows on CUDA devices alone.
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
    FAST = FAST._replace(multiply=multiply_true)
# A rounding to bf16 moves a value by 2**-9 of itself; the product and the bias added to it are rounded in turn on some
# devices, and sums in another order fall to the other side of a rounding.
BF16 = 2.0**-7


@pytest.fixture
def small_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fp8_products, "LEAST_FEATURES", 16)
    return None


def gradients(forms: Forms, *, seed: int, rows: int = 32, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs, weight, bias, target = (
        torch.randn(*shape, generator=generator) * scale for shape in ((rows, 64), (48, 64), (48,), (rows, 48))
    )
    leaves = [inputs.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    output = ScaledLinear.apply(*leaves, forms)
    (output.float() * target).sum().backward()
    return [output.detach().float(), *(leaf.grad for leaf in leaves)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [ACTIVATIONS, GRADIENTS])
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(16, 1024), (8192, 2048), (4097, 1040), (130, 48)])
def test_kernels_round_as_plain_torch_does(rows: int, columns: int, of: torch.dtype, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    matrix = torch.randn(rows, columns, device="cuda", dtype=of) * torch.rand(rows, 1, device="cuda").to(of).exp2()
    matrix[1], matrix[:, 2], matrix[3, 3] = 0.0, 0.0, 1e-20
    for each in (matrix, matrix.t(), matrix[:, : columns // 2]):
        for fast, plain in zip(
            fast_forms(torch.device("cuda")).both(each, dtype), quantise_both(each, dtype), strict=True
        ):
            assert torch.equal(fast.scales, plain.scales)
            assert torch.equal(fast.rows.view(torch.uint8), plain.rows.view(torch.uint8))
    matrix[5, 6] = float("nan")
    fast, _ = fast_forms(torch.device("cuda")).both(matrix, dtype)
    assert fast.rows.float()[5].isnan().all()


@given(seed=st.integers(0, 2**20), exponent=st.integers(-12, 12))
@settings(max_examples=25, deadline=None)
def test_the_fast_form_equals_the_true_one(seed: int, exponent: int) -> None:
    pairs = zip(
        gradients(FAST, seed=seed, scale=2.0**exponent),
        gradients(TRUE_FORMS, seed=seed, scale=2.0**exponent),
        strict=True,
    )
    for fast, true in pairs:
        # Terms may cancel: the bound is of the largest element, as that of a sum is of its terms.
        assert (fast - true).abs().max() <= BF16 * true.abs().max()


@given(seed=st.integers(0, 2**20), dtype=st.sampled_from([ACTIVATIONS, GRADIENTS]))
@settings(max_examples=25, deadline=None)
def test_a_row_is_rounded_by_no_more_than_its_format_says(seed: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
    found = quantise_rows(matrix, dtype)
    eps = torch.finfo(dtype)
    error = (found.rows.float() * found.scales - matrix).abs()
    # Half a step of the format relative to the element, or half the least step where it is subnormal.
    least = found.scales * eps.smallest_normal * eps.eps
    assert (error <= 0.51 * torch.maximum(matrix.abs() * eps.eps, least)).all()
    assert found.rows.float().abs().amax(dim=1).tolist() == [eps.max] * 8


def test_products_are_near_the_exact_ones() -> None:
    inputs, weight = torch.randn(64, 256), torch.randn(32, 256)
    exact = inputs @ weight.t()
    found = ScaledLinear.apply(inputs, weight, None, TRUE_FORMS).float()
    # Each factor is off by at most 2**-4 of itself, at random, so that a sum of n is off by much less than that.
    assert (found - exact).norm() / exact.norm() < 0.05


def test_a_model_keeps_its_names_and_is_left_as_it_was(small_layers: None) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    plain, inputs = copy.deepcopy(model), torch.randn(16, 32)
    products = ScaledProducts(model, FAST)
    assert len(products) == 2
    assert list(model.state_dict()) == list(plain.state_dict())
    assert not torch.equal(model(inputs), plain(inputs))
    model(torch.randn(2, 8, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.equal(model(inputs[:5]), plain(inputs[:5])), "so few rows are multiplied exactly"
    model.eval()
    assert torch.equal(model(inputs), plain(inputs)), "evaluations are exact"
    model.train()
    products.close()
    products.close()
    assert torch.equal(model(inputs), plain(inputs))


def test_the_transposed_layers_of_transformers_are_taken_too(small_layers: None) -> None:
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    layer, inputs = pytorch_utils.Conv1D(64, 32), torch.randn(16, 32)
    with torch.no_grad():
        layer.weight.normal_()
    exact = layer(inputs)
    ScaledProducts(layer, FAST)
    found = layer(inputs)
    assert found.dtype == torch.bfloat16
    assert (found - exact).norm() / exact.norm() < 0.05
    found.sum().backward()
    assert layer.weight.grad.shape == layer.weight.shape


def test_what_cannot_be_is_refused_by_reason() -> None:
    assert "precision 'bf16'" in (refuse_products(nn.Linear(8, 8), "fp32") or "")
    assert "at least 1024 features" in (refuse_products(nn.Linear(8, 8), "bf16") or "")
    assert refuse_products(nn.Linear(1024, 1024), "bf16") is None
    for technique in (RESIDENT, GRAPH):
        with pytest.raises(TechniqueRefused, match="this one is a cpu"):
            open_session(technique, [wide()], device=torch.device("cpu"), threads=1, knobs={"approximate": "fp8"})


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_program_cannot_allow_what_it_cannot_have(precision: str) -> None:
    with pytest.raises(ProgramError, match=r"Training\.allow names what this training cannot have: 'fp8' must go with"):
        dataclasses.replace(wide().training, precision=precision, allow={"fp8"})


def wide() -> SessionMember:
    model = nn.Linear(1024, 1024)
    return SessionMember(
        training=Training(
            model=model,
            batches=[torch.ones(16, 1024)],
            loss=lambda model, batch: model(batch).mean(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            precision="bf16",
        )
    )


def test_steps_in_8_bits_learn(small_layers: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    ScaledProducts(model, FAST)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(64, 32)
    losses = []
    for _ in range(40):
        loss = (model(inputs).float() - inputs.roll(1, dims=1)).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.2 * losses[0]
