"""Batches gathered at once are those that torch's loader gives, to the bit, and draw the same random numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from dovetail.feed.loaders import gathered


def dataset(rows: int) -> TensorDataset:
    images = torch.arange(rows * 6.0).reshape(rows, 2, 3)
    return TensorDataset(images, torch.arange(rows), images > 4)


def read(batches: Any) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """Two epochs, and what the global generator draws next."""
    torch.manual_seed(3)
    return [batch for _ in range(2) for batch in batches], torch.rand(4)


def assert_same(loader: "DataLoader[Any]") -> None:
    (expected, drawn), (found, drawn_too) = read(loader), read(gathered(loader))
    assert torch.equal(drawn, drawn_too)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert type(one) is type(other)
        for tensor, same in zip(one, other, strict=True):
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (same.dtype, same.shape, same.stride())
            assert torch.equal(tensor, same)


@given(rows=st.integers(1, 9), batch=st.integers(1, 5), shuffle=st.booleans(), drop_last=st.booleans())
def test_gathered_batches_are_the_loaders(rows: int, batch: int, shuffle: bool, drop_last: bool) -> None:
    loader = DataLoader(dataset(rows), batch_size=batch, shuffle=shuffle, drop_last=drop_last)
    assert gathered(loader) is not loader
    assert_same(loader)


def test_subsets_of_subsets_and_samplers_are_followed() -> None:
    part = Subset(Subset(dataset(9), [8, 1, 3, 5]), [3, 0, 2])
    loader = DataLoader(part, batch_size=2, sampler=WeightedRandomSampler([0.2, 0.5, 0.3], num_samples=7))
    assert gathered(loader) is not loader
    assert_same(loader)


def test_a_loaders_own_generator_goes_on_from_epoch_to_epoch() -> None:
    def loader() -> "DataLoader[Any]":
        return DataLoader(
            dataset(8), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5), drop_last=True
        )

    one, other = loader(), loader()
    for _ in range(3):
        for expected, found in zip(one, gathered(other), strict=True):
            assert torch.equal(expected[0], found[0])


class Doubling(TensorDataset):
    """A dataset whose rows are not those of its tensors."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class Listing(Dataset[int]):
    """A dataset of plain numbers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Doubling(torch.arange(4.0)), batch_size=2),
        lambda: DataLoader(Listing(), batch_size=2),
        lambda: DataLoader(dataset(4), batch_size=2, collate_fn=lambda rows: rows),
        lambda: DataLoader(dataset(4), batch_size=None),
        lambda: DataLoader(dataset(4), batch_size=2, num_workers=1),
        lambda: DataLoader(TensorDataset(torch.ones(2, 4).t()), batch_size=2),
        lambda: DataLoader(TensorDataset(torch.ones(4, requires_grad=True)), batch_size=2),
        lambda: [1, 2],
    ],
)
def test_others_stay_as_they_are(make: Callable[[], Any]) -> None:
    batches = make()
    assert gathered(batches) is batches
