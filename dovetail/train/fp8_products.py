"""The approximation `fp8`: the matrix products of large linear layers in 8 bits, each row with a scale of its own.

Of a layer y = x Wᵀ all three products are of rows with rows, a bᵀ, with both operands quantised along what is summed
over: x and W for y, dy and Wᵀ for dx, dyᵀ and xᵀ for dW. A row is divided by s = max|row| / m, so that its largest
element is the largest m that the format holds, and rounded to nearest: e4m3 (m = 448) for weights and activations, e5m2
(m = 57344) for gradients, which need the range more than the digits. Products are summed in fp32 and come out in bf16.
Weights, their gradients, names and the optimizer stay what they are; so do evaluations, small layers, and those that
give logits, which are wide and few and where rounding shows most.

`multiply_scaled` is the fast form, `multiply_true` the same by plain torch in fp32. They differ by the order of sums
alone, and by what bf16 rounds.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from dovetail.train import fp8_kernels, triton_kernels
from dovetail.vocabulary import TechniqueRefused
from dovetail.vocabulary.approximations import names_of, split_knobs

FP8 = "fp8"
ACTIVATIONS, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
PRECISIONS = ("bf16", "bf16-pure")
# Ada and Hopper are the first whose matrix units take 8 bits.
LEAST_CAPABILITY = (8, 9)
# Below this quantising takes as long as the product saves.
LEAST_FEATURES = 1024
# The units take whole groups of so many elements.
GROUP = 16
# Layers of blocks widen by 4, or 5.4 with gates in the same matrix; heads widen by 12 and more.
MOST_WIDENING = 8
# A scale of zero would divide by it.
LEAST_MAXIMUM = 1e-12


class ScaledRows(NamedTuple):
    """A matrix in 8 bits and the scale of each of its rows, as a column."""

    rows: torch.Tensor
    scales: torch.Tensor


Quantise = Callable[[torch.Tensor, torch.dtype], ScaledRows]
QuantiseBoth = Callable[[torch.Tensor, torch.dtype], tuple[ScaledRows, ScaledRows]]
Multiply = Callable[[ScaledRows, ScaledRows, torch.Tensor | None], torch.Tensor]


def quantise_rows(matrix: torch.Tensor, dtype: torch.dtype) -> ScaledRows:
    """The matrix in 8 bits, each row scaled so that its largest element is the largest that the format holds.

    >>> found = quantise_rows(torch.tensor([[1.0, -2.0], [0.0, 0.0]]), torch.float8_e4m3fn)
    >>> found.rows.float().tolist(), round(found.scales[0].item() * 448, 6)
    ([[224.0, -448.0], [0.0, 0.0]], 2.0)
    """
    values = matrix.float()
    scales = values.abs().amax(dim=1, keepdim=True).clamp(min=LEAST_MAXIMUM) * (1.0 / torch.finfo(dtype).max)
    return ScaledRows((values * scales.reciprocal()).to(dtype).contiguous(), scales.contiguous())


def quantise_both(matrix: torch.Tensor, dtype: torch.dtype) -> tuple[ScaledRows, ScaledRows]:
    """The matrix in 8 bits, each row scaled, and the transposed one, each column of the given one scaled.

    >>> rows, columns = quantise_both(torch.tensor([[1.0, -2.0]]), torch.float8_e4m3fn)
    >>> rows.rows.float().tolist(), columns.rows.float().tolist()
    ([[224.0, -448.0]], [[448.0], [-448.0]])
    """
    return quantise_rows(matrix, dtype), quantise_rows(matrix.t(), dtype)


def multiply_true(left: ScaledRows, right: ScaledRows, bias: torch.Tensor | None = None) -> torch.Tensor:
    """left rightᵀ by plain torch: what the fast form is to equal."""
    product = (left.rows.float() * left.scales) @ (right.rows.float() * right.scales).t()
    return (product if bias is None else product + bias.to(torch.bfloat16)).to(torch.bfloat16)


def multiply_scaled(left: ScaledRows, right: ScaledRows, bias: torch.Tensor | None = None) -> torch.Tensor:
    """left rightᵀ by the device's matrix units. The right one must be e4m3."""
    return torch._scaled_mm(
        left.rows,
        right.rows.t(),
        scale_a=left.scales,
        scale_b=right.scales.t(),
        bias=None if bias is None else bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,  # with scales of rows, the kernels of Hopper are not fast otherwise
    )


class ScaledLinear(torch.autograd.Function):
    """A linear layer's product and its two gradients, by one way to multiply and to quantise."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: "Forms") -> Any:
        """y = x Wᵀ + b, of rows."""
        # What backward takes of both is kept in 8 bits: a byte an element where autocast keeps two.
        of_inputs: tuple[torch.Tensor, ...] = ()
        of_weight: tuple[torch.Tensor, ...] = ()
        if ctx.needs_input_grad[1]:
            left, of_inputs = how.both(inputs, ACTIVATIONS)
        else:
            left = how.rows(inputs, ACTIVATIONS)
        if ctx.needs_input_grad[0]:
            right, of_weight = how.both(weight, ACTIVATIONS)
        else:
            right = how.rows(weight, ACTIVATIONS)
        ctx.save_for_backward(*of_inputs, *of_weight)
        ctx.how, ctx.dtypes = how, (inputs.dtype, weight.dtype, None if bias is None else bias.dtype)
        return how.multiply(left, right, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """dx = dy W, dW = dyᵀ x, db the sum of dy."""
        how, (gradient,) = ctx.how, gradients
        of_inputs = of_weight = of_bias = None
        for_inputs, for_weight, for_bias = ctx.needs_input_grad[:3]
        if for_weight:
            by_rows, by_columns = how.both(gradient, GRADIENTS)
            product = how.multiply(by_columns, ScaledRows(*ctx.saved_tensors[:2]), None)
            of_weight = product.to(ctx.dtypes[1])
        elif for_inputs:
            by_rows = how.rows(gradient, GRADIENTS)
        if for_inputs:
            product = how.multiply(by_rows, ScaledRows(*ctx.saved_tensors[-2:]), None)
            of_inputs = product.to(ctx.dtypes[0])
        if for_bias:
            of_bias = gradient.sum(0, dtype=torch.float32).to(ctx.dtypes[2])
        return of_inputs, of_weight, of_bias, None


class Forms(NamedTuple):
    """How products are formed: what quantises rows, or both rows and columns, and what multiplies them."""

    rows: Quantise
    both: QuantiseBoth
    multiply: Multiply


TRUE_FORMS = Forms(quantise_rows, quantise_both, multiply_true)


def fast_forms(device: torch.device) -> Forms:
    """The fast forms on a device: plain torch reads a matrix several times, kernels of ours twice. By rows alone it is
    compiled; inside a block that is compiled, it becomes a part of what comes before."""
    if device.type != "cuda" or not triton_kernels.is_there():
        return Forms(quantise_rows, quantise_both, multiply_scaled)
    alone = torch.compile(quantise_rows)
    return Forms(
        lambda matrix, dtype: (quantise_rows if torch.compiler.is_compiling() else alone)(matrix, dtype),
        _quantise_both_fast,
        multiply_scaled,
    )


def _quantise_both_fast(matrix: torch.Tensor, dtype: torch.dtype) -> tuple[ScaledRows, ScaledRows]:
    by_rows, row_scales, by_columns, column_scales = fp8_kernels.quantise_both(matrix, dtype)
    return ScaledRows(by_rows, row_scales), ScaledRows(by_columns, column_scales)


def refuse_products(model: nn.Module, precision: str) -> str | None:
    """Why a model's products cannot be in 8 bits on any device, or None.

    >>> refuse_products(nn.Linear(8, 8), "bf16")
    "'fp8' must find a linear layer of at least 1024 features in and out, both multiples of 16; this model has none"
    """
    if precision not in PRECISIONS:
        return f"'fp8' must go with precision 'bf16' or 'bf16-pure', for products come out in bf16; got {precision!r}"
    if next(large_layers(model), None) is None:
        return (
            f"'fp8' must find a linear layer of at least {LEAST_FEATURES} features in and out, both multiples of "
            f"{GROUP}; this model has none"
        )
    return None


def refuse_device(device: torch.device) -> str | None:
    """Why products cannot be in 8 bits on this device, or None.

    >>> refuse_device(torch.device("cpu"))
    "'fp8' must have a device whose matrix units take 8 bits (CUDA, compute capability 8.9 or more); this one is a cpu"
    """
    found = f"a {device.type}"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= LEAST_CAPABILITY:
            return None
        found = f"of {'.'.join(map(str, capability))}"
    return (
        f"'fp8' must have a device whose matrix units take 8 bits (CUDA, compute capability 8.9 or more); "
        f"this one is {found}"
    )


def wants_fp8(knobs: Mapping[str, Any], device: torch.device) -> bool:
    """Whether a session's knobs ask for products in 8 bits. Raises `TechniqueRefused` where the device has none."""
    wanted = FP8 in names_of(split_knobs(knobs)[0])
    if wanted and (reason := refuse_device(device)):
        raise TechniqueRefused(reason)
    return wanted


class ScaledProducts:
    """The large linear layers of a model with their products in 8 bits, until it is closed. They keep their names,
    parameters and hooks: only what their forward computes while they train is another."""

    def __init__(self, model: nn.Module, forms: Forms) -> None:
        self._modules = list(large_layers(model))
        for module in self._modules:
            # Another class, not another forward of the object: blocks that a program compiles take it along.
            module.__class__ = _scaled_class(type(module))  # type: ignore[arg-type]  # classes are hashable
            vars(module)["forms"] = forms

    def __len__(self) -> int:
        return len(self._modules)

    def close(self) -> None:
        """Leave the layers as they were. May be called twice."""
        for module in self._modules:
            module.__class__ = type(module).__mro__[2]
            del vars(module)["forms"]
        self._modules = []


class ScaledForward(nn.Module):
    """What a layer whose products are in 8 bits computes, before its own class in the order of methods."""

    forms: Forms

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layer's output, exactly where it does not train or has too few rows."""
        rows = inputs.numel() // inputs.shape[-1]
        if not self.training or rows % GROUP or not rows:
            exact: torch.Tensor = super().forward(inputs)
            return exact
        bias: torch.Tensor | None = self.bias  # type: ignore[assignment]
        flat: torch.Tensor = ScaledLinear.apply(inputs.reshape(rows, -1), weight_of(self), bias, self.forms)
        return flat.view(*inputs.shape[:-1], flat.shape[-1])


@functools.cache
def _scaled_class(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"Scaled{kind.__name__}", (ScaledForward, kind), {"__module__": kind.__module__})


def large_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The layers whose products are large enough: `nn.Linear`, and `Conv1D` of transformers, which is one with its
    weight transposed.

    >>> layers = nn.ModuleList([nn.Linear(1024, 4096), nn.Linear(1024, 64), nn.Linear(1024, 50304)])
    >>> [layer.out_features for layer in large_layers(layers)]
    [4096]
    """
    for module in model.modules():
        if type(module) is nn.Linear or _is_transposed(module):
            wide, deep = weight_of(module).shape
            fits = min(wide, deep) >= LEAST_FEATURES and not (wide % GROUP or deep % GROUP)
            if fits and wide <= MOST_WIDENING * deep:
                yield module


def weight_of(module: nn.Module) -> torch.Tensor:
    """A layer's weight with a row for each output."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight.t() if _is_transposed(module) else weight


def _is_transposed(module: nn.Module) -> bool:
    return any(k.__name__ == "Conv1D" and k.__module__.startswith("transformers.") for k in type(module).__mro__)
