"""Numbers in 8 bits: blocks of 256, each with the largest of its magnitudes as a scale, and the first bits of floats.

A code is a magnitude's place, counted down from 1, among floats with three bits of mantissa: eight to an octave, so
that each is within a sixteenth of what it stands for. 7 bits and a sign reach down to 2^-16 of the largest, 8 without a
sign to 2^-32. Below, a number with a sign is 0; one without is the smallest there is, since a first moment is divided
by the root of it. Both ways are a few operations on whole numbers, which any vectors can do; the dynamic map of
Dettmers (2022), which was here first, took several times as long on a host (docs/log.md). docs/numeric.md has the
recurrence, and `coded_adam.c` does the same.
"""

import functools

import torch

BLOCK = 256
#: A block whose magnitudes are all below is taken for zeros: their reciprocal must be a number.
TINY = 2.0**-100
#: The upper 12 bits of 1.0, less the last code: what is added to a code to have the upper bits of its number.
OFFSETS = {7: (127 << 3) - 127, 8: (127 << 3) - 255}


@functools.cache
def numbers_of(signed: bool, device: torch.device) -> torch.Tensor:
    """What each code stands for, before it is scaled.

    >>> numbers_of(True, torch.device("cpu"))[[0, 1, 126, 127, 255]].tolist()
    [0.0, 1.9073486328125e-05, 0.9375, 1.0, -1.0]
    """
    bits = 7 if signed else 8
    magnitudes = ((torch.arange(2**bits, dtype=torch.int32) + OFFSETS[bits]) << 20).view(torch.float32)
    magnitudes[0] = 0.0
    return (torch.cat((magnitudes, -magnitudes)) if signed else magnitudes).to(device)


def encode(numbers: torch.Tensor, *, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of numbers, as many in a row, and the scale of each block of them. Where a block has an infinity or NaN
    so is its scale, and nothing that is read back of it is finite.

    >>> codes, scales = encode(torch.tensor([0.5, -2.0, 0.0]), signed=True)
    >>> codes.tolist(), scales.tolist()
    ([111, 255, 0], [2.0])
    """
    blocks, bits = _blocks(numbers), 7 if signed else 8
    magnitudes = blocks.abs()
    scales = magnitudes.amax(dim=1)
    is_zero = scales < TINY
    scales = scales.masked_fill(is_zero, 0.0)
    inverse = (1.0 / scales.masked_fill(is_zero, 1.0)).masked_fill(is_zero, 0.0)
    raw = (magnitudes * inverse[:, None]).view(torch.int32)
    nearest = (raw + (0x7FFFF + ((raw >> 20) & 1))) >> 20  # ties go to the even one
    codes = (nearest - OFFSETS[bits]).clamp(0, 2**bits - 1)
    if not signed:
        codes = torch.maximum(codes, (raw > 0).to(torch.int32))
    else:
        codes = codes + blocks.signbit().to(torch.int32) * 128
    return codes.to(torch.uint8).flatten()[: numbers.numel()], scales


def decode(codes: torch.Tensor, scales: torch.Tensor, *, signed: bool) -> torch.Tensor:
    """The numbers that codes in a row stand for.

    >>> codes, scales = encode(torch.tensor([0.5, -2.0, 0.0]), signed=True)
    >>> decode(codes, scales, signed=True).tolist()
    [0.5, -2.0, 0.0]
    """
    numbers = numbers_of(signed, codes.device)[codes.to(torch.int32)]
    return (_blocks(numbers) * scales[:, None]).flatten()[: codes.numel()]


def count_blocks(numbers: int) -> int:
    """How many scales so many numbers have.

    >>> count_blocks(257)
    2
    """
    return -(-numbers // BLOCK)


def _blocks(numbers: torch.Tensor) -> torch.Tensor:
    missing = -numbers.numel() % BLOCK
    return (torch.nn.functional.pad(numbers, (0, missing)) if missing else numbers).view(-1, BLOCK)
