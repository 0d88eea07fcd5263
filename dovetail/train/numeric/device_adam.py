"""Adam and AdamW with moments in 8 bits on accelerators, in one pass. Plain torch takes some fifty passes over as many
numbers in fp32, and gives the same bits: nothing here is fused into one rounding, and roots and quotients round to
nearest. Without Triton this does nothing: ask `triton_kernels.is_there`."""

from __future__ import annotations  # those of kernels name Triton

from collections.abc import Mapping
from typing import Any

import torch

from dovetail.train.numeric.blockwise import BLOCK, count_blocks, numbers_of
from dovetail.train.triton_kernels import jit, tl

_ROWS = 4


@jit
def _encode(numbers, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    raw = numbers.to(tl.int32, bitcast=True)
    magnitudes = raw & 0x7FFFFFFF  # whose order is that of numbers, and NaN comes last
    scale = tl.max(magnitudes, axis=1).to(tl.float32, bitcast=True)
    is_zero = scale < 7.888609052210118e-31
    scale = tl.where(is_zero, 0.0, scale)
    inverse = tl.where(is_zero, 0.0, tl.div_rn(1.0, tl.where(is_zero, 1.0, scale)))
    part = (magnitudes.to(tl.float32, bitcast=True) * inverse[:, None]).to(tl.int32, bitcast=True)
    last: tl.constexpr = (1 << BITS) - 1
    code = ((part + (0x7FFFF + ((part >> 20) & 1))) >> 20) - ((127 << 3) - last)
    code = tl.minimum(tl.maximum(code, 0), last)
    if BITS == 8:
        code = tl.maximum(code, (part > 0).to(tl.int32))
    else:
        code = code | ((raw >> 24) & 128)
    return code, scale


@jit
def _adam(  # type: ignore[no-untyped-def]
    weights, gradients, means, mean_scales, squares, square_scales, with_sign, without,
    count, blocks, kept, decay, beta1, new1, beta2, new2, step_size, inverse_root, epsilon,
    DECOUPLED: tl.constexpr, DECAYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside, is_row = at < count, rows < blocks
    weight = tl.load(weights + at, mask=inside, other=0.0)
    gradient = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
    first_code = tl.load(means + at, mask=inside, other=0).to(tl.int32)
    second_code = tl.load(squares + at, mask=inside, other=0).to(tl.int32)
    first = tl.load(with_sign + first_code) * tl.load(mean_scales + rows, mask=is_row, other=0.0)[:, None]
    second = tl.load(without + second_code) * tl.load(square_scales + rows, mask=is_row, other=0.0)[:, None]
    if DECOUPLED:
        weight = weight * kept
    elif DECAYS:
        gradient = gradient + weight * decay
    first = first * beta1 + gradient * new1
    second = second * beta2 + (gradient * gradient) * new2
    divisor = tl.sqrt_rn(second) * inverse_root + epsilon
    weight = weight - tl.div_rn(first, divisor) * step_size
    tl.store(weights + at, weight, mask=inside)
    first = tl.where(inside, first, 0.0)
    second = tl.where(inside, second, 0.0)
    code, scale = _encode(first, 7)
    tl.store(means + at, code.to(tl.uint8), mask=inside)
    tl.store(mean_scales + rows, scale, mask=is_row)
    code, scale = _encode(second, 8)
    tl.store(squares + at, code.to(tl.uint8), mask=inside)
    tl.store(square_scales + rows, scale, mask=is_row)


def update(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    slots: Mapping[str, Any],
    numbers: Mapping[str, Any],
    first: int,
) -> None:
    """One step of one parameter, whose numbers lie in a row, from its moments' codes and scales among the slots."""
    moments = (slots[name] for name in ("exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale"))
    count, device = weights.numel(), weights.device
    blocks = count_blocks(count)
    assert BLOCK == 256, "as many are in a row of the kernel"
    names = ("kept", "decay", "beta1", "new1", "beta2", "new2", "step_size", "inverse_root", "epsilon")
    _adam[(-(-blocks // _ROWS),)](
        weights,
        gradients,
        *(each.to_local() if hasattr(each, "to_local") else each for each in moments),
        numbers_of(True, device),
        numbers_of(False, device),
        count,
        blocks,
        *(numbers[name] for name in names),
        DECOUPLED=bool(numbers["decoupled"]),
        DECAYS=bool(numbers["decay"]),
        ROWS=_ROWS,
        enable_fp_fusion=False,
    )
