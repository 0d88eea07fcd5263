"""Batches read directly are those that torch's loader gives, to the bit, and draw the same random numbers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from dovetail.feeds import loaders
from dovetail.feeds.loaders import direct, draws_at_first


def dataset(rows: int) -> TensorDataset:
    images = torch.arange(rows * 6.0).reshape(rows, 2, 3)
    return TensorDataset(images, torch.arange(rows), images > 4)


def pairs(rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of tensors as people put them into a list."""
    images, labels, _ = dataset(rows).tensors
    return list(zip(images, labels, strict=True))


def read(batches: Any) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """Two epochs, and what the global generator draws next."""
    torch.manual_seed(3)
    return [batch for _ in range(2) for batch in batches], torch.rand(4)


def assert_same(loader: "DataLoader[Any]") -> None:
    (expected, drawn), (found, drawn_too) = read(loader), read(direct(loader))
    assert torch.equal(drawn, drawn_too)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert type(one) is type(other)
        pairs = [(one, other)] if isinstance(one, torch.Tensor) else zip(one, other, strict=True)
        for tensor, same in pairs:
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (same.dtype, same.shape, same.stride())
            assert torch.equal(tensor, same)


@given(rows=st.integers(1, 9), batch=st.integers(1, 5), shuffle=st.booleans(), drop_last=st.booleans())
def test_direct_batches_are_the_loaders(rows: int, batch: int, shuffle: bool, drop_last: bool) -> None:
    loader = DataLoader(dataset(rows), batch_size=batch, shuffle=shuffle, drop_last=drop_last)
    assert direct(loader) is not loader
    assert_same(loader)


def test_subsets_of_subsets_and_samplers_are_followed() -> None:
    part = Subset(Subset(dataset(9), [8, 1, 3, 5]), [3, 0, 2])
    loader = DataLoader(part, batch_size=2, sampler=WeightedRandomSampler([0.2, 0.5, 0.3], num_samples=7))
    assert direct(loader) is not loader
    assert_same(loader)


def test_a_loaders_own_generator_goes_on_from_epoch_to_epoch() -> None:
    def loader() -> "DataLoader[Any]":
        return DataLoader(
            dataset(8), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5), drop_last=True
        )

    one, other = loader(), loader()
    for _ in range(3):
        for expected, found in zip(one, direct(other), strict=True):
            assert torch.equal(expected[0], found[0])


class Doubling(TensorDataset):
    """A dataset whose rows are not those of its tensors."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class Drawing(Dataset[torch.Tensor]):
    """A dataset that augments what it gives."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(2)


class Several(Drawing):
    """One that can be asked for several items at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.full((2,), float(index)) for index in indices]


class Eager:
    """A sampler of batches that draws its order when it is asked for an iterator."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(4).view(2, 2).tolist())

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Doubling(torch.arange(4.0)), batch_size=2),
        lambda: DataLoader(Drawing(), batch_size=2, shuffle=True),
        lambda: DataLoader(Several(), batch_size=2, shuffle=True),
        lambda: DataLoader(dataset(4), batch_size=2, collate_fn=lambda rows: torch.stack([row[0] for row in rows])),
        lambda: DataLoader(TensorDataset(torch.ones(2, 4).t()), batch_size=2),
        lambda: DataLoader(TensorDataset(torch.ones(4, requires_grad=True)), batch_size=2),
        lambda: DataLoader([(torch.ones(2), 1), (torch.zeros(2), 2)], batch_size=2, shuffle=True),
        lambda: DataLoader(dataset(4), batch_sampler=Eager()),  # type: ignore[arg-type]
        lambda: DataLoader(torch.arange(12.0).view(6, 2), batch_size=4, shuffle=True),  # type: ignore[arg-type]
        lambda: DataLoader(pairs(7), batch_size=3, shuffle=True),  # type: ignore[arg-type]
        lambda: DataLoader(Subset(pairs(7)[1:], [4, 0, 2]), batch_size=2),  # type: ignore[arg-type]
        lambda: DataLoader([*pairs(3), *pairs(2)], batch_size=2),  # type: ignore[arg-type]
        lambda: DataLoader([(image.t(),) for image, _ in pairs(3)], batch_size=2),  # type: ignore[arg-type]
        lambda: DataLoader([(images[:1],) for images, _ in pairs(3)], batch_size=2),  # type: ignore[arg-type]
        lambda: DataLoader([[image, label] for image, label in pairs(3)], batch_size=2),  # type: ignore[arg-type]
        lambda: DataLoader([(image, 1) for image, _ in pairs(3)], batch_size=2),  # type: ignore[arg-type]
        lambda: DataLoader([(), ()], batch_size=2),  # type: ignore[arg-type]
    ],
)
def test_whatever_is_read_here_is_what_the_loader_gives(make: Callable[[], Any]) -> None:
    loader = make()
    assert direct(loader) is not loader
    assert_same(loader)


def test_what_is_written_to_rows_or_put_in_their_place_is_seen() -> None:
    data = pairs(4)
    batches = direct(DataLoader(data, batch_size=4))  # type: ignore[arg-type]
    assert next(iter(batches))[1].tolist() == [0, 1, 2, 3]
    data[2][1].fill_(9)
    assert next(iter(batches))[1].tolist() == [0, 1, 9, 3]
    data[0] = data[3]
    assert next(iter(batches))[1].tolist() == [3, 1, 9, 3]
    data.append(data[1])
    assert [batch[1].tolist() for batch in batches] == [[3, 1, 9, 3], [1]]


def test_rows_are_looked_at_only_for_who_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(loaders, "_columns_of", lambda data: looked.append(len(data)))
    loader = DataLoader(pairs(4), batch_size=2)  # type: ignore[arg-type]
    assert draws_at_first(loader)
    batches = iter(direct(loader))
    next(batches)
    assert not looked
    next(batches)
    assert looked == [4]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: (1, 2), True),
        (lambda: DataLoader(pairs(4), batch_size=2, shuffle=True), True),  # type: ignore[arg-type]
        (lambda: DataLoader(Subset(dataset(4), [0, 2])), True),
        (lambda: DataLoader(Drawing(), batch_size=2), False),
        (lambda: DataLoader(Subset(Drawing(), [0, 2])), False),
        (lambda: DataLoader(dataset(4), collate_fn=lambda rows: rows), False),
        (lambda: DataLoader(dataset(4), sampler=WeightedRandomSampler([1.0] * 4, num_samples=4)), False),
        (lambda: DataLoader(dataset(4), batch_sampler=Eager()), False),  # type: ignore[arg-type]
        (lambda: DataLoader(dataset(4), num_workers=1), False),
        (lambda: iter([1]), False),
    ],
)
def test_whether_later_batches_may_draw_is_known(make: Callable[[], Any], expected: bool) -> None:
    assert draws_at_first(make()) is expected


class Streaming(IterableDataset[int]):
    """Items that are given and not asked for."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Own(DataLoader[Any]):
    """A loader of somebody's own."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(dataset(4), batch_size=None),
        lambda: DataLoader(dataset(4), batch_size=2, num_workers=1),
        lambda: DataLoader(Streaming(), batch_size=2),
        lambda: Own(dataset(4), batch_size=2),
        lambda: [1, 2],
    ],
)
def test_others_stay_as_they_are(make: Callable[[], Any]) -> None:
    batches = make()
    assert direct(batches) is batches
