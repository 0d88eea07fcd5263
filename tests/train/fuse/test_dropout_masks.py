"""Masks drawn for a stack are those that each member's own dropout would draw."""

import pytest
import torch
from torch import nn

from dovetail.train.fuse.dropout_masks import Draw, Masks
from dovetail.train.randomness import KeyedRandomness

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("make", "shape", "stride"),
    [
        (nn.Dropout, (5, 33), (33, 1)),
        (nn.Dropout, (5, 33), (1, 5)),
        (nn.Dropout, (0, 3), (3, 1)),
        (nn.Dropout1d, (4, 3, 2), (6, 2, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_are_those_of_each_members_own_dropout(
    make: type[nn.Module], shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> None:
    rates = [0.5, 0.1, 0.0, 1.0]
    models = [nn.Sequential(make(rate)) for rate in rates]
    randoms = [KeyedRandomness(model, seed=number, device=CPU) for number, model in enumerate(models)]
    for random in randoms:
        random.begin(3, 0)
    draw = Draw(name="0", call=0, shape=shape, stride=stride, dtype=dtype)
    (found,) = Masks(models, randoms, CPU).draw([draw], range(len(models))).values()
    for mask, model, random in zip(found, models, randoms, strict=True):
        random.begin(3, 0)
        ones = torch.empty_strided(shape, stride, dtype=dtype).fill_(1)
        assert torch.equal(mask, model(ones))
        random.close()
