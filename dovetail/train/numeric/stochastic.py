"""Rounding to bf16 by chance: up as often as a number is far from the one below, so that sums of small changes are
right in the mean. The chance of each element follows from a key and its place alone, on any device."""

import torch

_WORD = 0xFFFFFFFF


def round_by_chance(numbers: torch.Tensor, *, key: int, start: int = 0) -> torch.Tensor:
    """Numbers in a row as bf16; `start` is the place of the first of them in its tensor.

    >>> found = round_by_chance(torch.full((4000,), 1 + 2**-9), key=7)  # a quarter of the way to 1 + 2**-7
    >>> found.unique().tolist(), 0.22 < (found > 1).float().mean() < 0.28
    ([1.0, 1.0078125], tensor(True))
    """
    places = torch.arange(start, start + numbers.numel(), device=numbers.device) + (key & _WORD)
    chance = (_mix(places) & 0xFFFF).to(torch.int32)
    raw = numbers.float().view(torch.int32)
    rounded = ((raw + chance) & -65536).view(torch.float32)
    return torch.where(numbers.isfinite(), rounded, numbers).to(torch.bfloat16)


def _mix(places: torch.Tensor) -> torch.Tensor:
    """32 random bits of each whole number: the finalizer of MurmurHash3."""
    found = places & _WORD
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ (found >> shift)) * factor & _WORD
    return found ^ (found >> 16)
