"""A matrix in 8 bits by rows and by columns on CUDA devices, in two readings: the first finds the largest magnitude of
each row and column, the second rounds each number twice and writes one copy as it lies and one transposed. Plain torch,
compiled, reads a matrix for each of these, and writes the transposed copy in steps of a byte. Without Triton this does
nothing: ask `triton_kernels.is_there`."""

from __future__ import annotations  # those of kernels name Triton

from typing import Any

import torch

from dovetail.train.triton_kernels import jit, tl, triton

# What one program reads at a time; measured on an H200 (docs/log.md).
_MAXIMA = {"ROWS": 128, "COLUMNS": 64, "num_warps": 4}
_ROUNDED = {"ROWS": 128, "COLUMNS": 128, "num_warps": 4}

FourTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@jit
def _find_maxima(  # type: ignore[no-untyped-def]
    matrix, row_maxima, column_maxima, rows, columns, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = row.to(tl.int64) * stride
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    numbers = tl.load(matrix + start[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # whose order is that of numbers; NaN comes last
    tl.atomic_max(row_maxima + row, tl.max(magnitudes, axis=1), mask=row < rows, sem="relaxed")
    tl.atomic_max(column_maxima + column, tl.max(magnitudes, axis=0), mask=column < columns, sem="relaxed")


@jit
def _scales_of(maxima, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    found = maxima.to(tl.float32, bitcast=True)
    scales = tl.where(found < 1e-12, 1e-12, found) * (1.0 / LARGEST)
    return scales, tl.div_rn(1.0, scales)


@jit
def _round(  # type: ignore[no-untyped-def]
    matrix, row_maxima, column_maxima, by_rows, row_scales, by_columns, column_scales, rows, columns, stride,
    LARGEST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < columns
    inside = is_row[:, None] & is_column[None, :]
    long_row, long_column = row.to(tl.int64), column.to(tl.int64)
    numbers = tl.load(matrix + long_row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    scales, inverse = _scales_of(tl.load(row_maxima + row, mask=is_row, other=0), LARGEST)
    tl.store(row_scales + row, scales, mask=is_row & (tl.program_id(1) == 0))
    found = (numbers * inverse[:, None]).to(by_rows.dtype.element_ty)
    tl.store(by_rows + long_row[:, None] * columns + column[None, :], found, mask=inside)
    scales, inverse = _scales_of(tl.load(column_maxima + column, mask=is_column, other=0), LARGEST)
    tl.store(column_scales + column, scales, mask=is_column & (tl.program_id(0) == 0))
    found = tl.trans((numbers * inverse[None, :]).to(by_columns.dtype.element_ty))
    tl.store(by_columns + long_column[:, None] * rows + row[None, :], found, mask=tl.trans(inside))


def quantise_both(matrix: torch.Tensor, dtype: torch.dtype) -> FourTensors:
    """The matrix in 8 bits with a scale for each row, and its transpose likewise: two tensors each."""
    if matrix.stride(0) == 1 < matrix.stride(1):  # as it lies, its columns are rows
        by_columns, column_scales, by_rows, row_scales = _operator(matrix.t(), dtype)
        return by_rows, row_scales, by_columns, column_scales
    found: FourTensors = _operator(matrix, dtype)
    return found


def _quantise_both(matrix: torch.Tensor, dtype: torch.dtype) -> FourTensors:
    matrix = matrix if matrix.stride(1) == 1 else matrix.contiguous()
    rows, columns = matrix.shape
    maxima = matrix.new_zeros(rows + columns, dtype=torch.int32)
    row_maxima, column_maxima = maxima[:rows], maxima[rows:]
    by_rows, by_columns = (matrix.new_empty(shape, dtype=dtype) for shape in ((rows, columns), (columns, rows)))
    row_scales, column_scales = (matrix.new_empty((count, 1), dtype=torch.float32) for count in (rows, columns))
    maxima_grid, rounded_grid = (
        (triton.cdiv(rows, each["ROWS"]), triton.cdiv(columns, each["COLUMNS"])) for each in (_MAXIMA, _ROUNDED)
    )
    _find_maxima[maxima_grid](matrix, row_maxima, column_maxima, rows, columns, matrix.stride(0), **_MAXIMA)
    _round[rounded_grid](
        matrix, row_maxima, column_maxima, by_rows, row_scales, by_columns, column_scales, rows, columns,
        matrix.stride(0), LARGEST=torch.finfo(dtype).max, **_ROUNDED,
    )  # fmt: skip
    return by_rows, row_scales, by_columns, column_scales


def _shapes_of_both(matrix: torch.Tensor, dtype: torch.dtype) -> FourTensors:
    rows, columns = matrix.shape
    return (
        matrix.new_empty((rows, columns), dtype=dtype),
        matrix.new_empty((rows, 1), dtype=torch.float32),
        matrix.new_empty((columns, rows), dtype=dtype),
        matrix.new_empty((columns, 1), dtype=torch.float32),
    )


# An operator of its own, so that blocks that are compiled take it along, and strides are those that it is called with.
_operator: Any = None
if triton is not None:
    _operator = torch.library.custom_op("dovetail::quantise_both", _quantise_both, mutates_args=())
    _operator.register_fake(_shapes_of_both)
