"""Numbers in 8 bits are the nearest that the map has, and blocks with what is no number say so."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.train.numeric.blockwise import BLOCK, count_blocks, decode, encode, numbers_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_floats_of_three_bits(signed):
    found = numbers_of(signed, CPU)[1 : 128 if signed else 256]
    mantissa, exponent = found.frexp()
    assert torch.equal(mantissa * 16, (mantissa * 16).round())
    assert torch.all(found.diff() > 0)
    assert found[-1] == 1.0
    assert exponent[0] == (-15 if signed else -31)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 700), st.booleans(), st.integers(-20, 20), st.integers(0, 1 << 30))
def test_codes_are_the_nearest(count, signed, power, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, generator=generator) ** 3 * 10.0**power
    numbers = numbers if signed else numbers.abs()
    codes, scales = encode(numbers, signed=signed)
    assert codes.dtype == torch.uint8
    assert scales.numel() == count_blocks(count)
    back = decode(codes, scales, signed=signed)
    scale = scales.repeat_interleave(BLOCK)[:count]
    table = numbers_of(signed, CPU)
    best = (numbers[:, None] - table * scale[:, None]).abs().amin(dim=1)
    smallest = table[1] * scale  # below, it is zero, or without a sign the smallest
    assert torch.all(
        (numbers - back).abs() <= torch.maximum(best + 2e-7 * scale, smallest * (numbers.abs() < smallest))
    )


def test_what_was_read_back_is_written_as_it_was():
    for signed in (True, False):
        numbers = numbers_of(signed, CPU) * 3.5
        codes, scales = encode(numbers, signed=signed)
        assert torch.equal(decode(codes, scales, signed=signed), numbers)


def test_zeros_and_very_small_numbers_are_zero():
    numbers = torch.cat((torch.zeros(BLOCK), torch.full((BLOCK,), 1e-38), torch.ones(3)))
    codes, scales = encode(numbers, signed=False)
    assert scales.tolist() == [0.0, 0.0, 1.0]
    assert decode(codes, scales, signed=False).tolist() == [0.0] * (2 * BLOCK) + [1.0] * 3


def test_a_second_moment_that_is_not_zero_never_becomes_zero():
    """A first moment over the root of it would be one over epsilon."""
    numbers = torch.tensor([1.0, 1e-20, 0.0])
    codes, scales = encode(numbers, signed=False)
    assert codes.tolist() == [255, 1, 0]
    assert encode(numbers, signed=True)[0].tolist() == [127, 0, 0]
    assert decode(codes, scales, signed=False)[1] > 0


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_no_number_is_not_hidden(bad):
    numbers = torch.ones(2 * BLOCK)
    numbers[5] = bad
    codes, scales = encode(numbers, signed=True)
    assert not torch.isfinite(scales[0])
    assert scales[1] == 1.0
    back = decode(codes, scales, signed=True)
    assert not back[:BLOCK].isfinite().any()
    assert torch.equal(back[BLOCK:], numbers[BLOCK:])
