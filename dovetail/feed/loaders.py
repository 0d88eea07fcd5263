"""Loaders that give what a `DataLoader` of torch gives, with less work: only its order, or whole batches at once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, MapDataPipe, Subset, TensorDataset, default_collate

from dovetail.feed.generators import generators_in


def indices_only(loader: "DataLoader[Any]") -> Iterable[Any]:
    """A loader over the indices: with the same sampler and generator it draws the same numbers and loads nothing."""
    # One with persistent workers draws for them once only, so it must be iterated itself, as must one whose items are
    # given, not asked for, or draw from a generator that is carried from epoch to epoch.
    data = loader.dataset
    asked_for = (
        hasattr(data, "__getitem__") and not isinstance(data, IterableDataset) and loader.batch_sampler is not None
    )
    if not asked_for or loader.persistent_workers or next(generators_in(data), None):
        return loader
    return DataLoader(_Indices(), batch_sampler=loader.batch_sampler, generator=loader.generator, collate_fn=list)


class _Indices(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return index


def direct(batches: Any) -> Any:
    """The same batches to the bit with less work: of torch's own loader over items that are asked for, in this process,
    without torch's iterator, which takes longer than to read a small batch; where the items are rows of tensors, each
    batch by one indexing instead of row by row. Others as they are.

    >>> data = TensorDataset(torch.arange(6.0), torch.arange(6))
    >>> [rows.tolist() for rows, _ in direct(DataLoader(data, batch_size=4))]
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    """
    if type(batches) is not DataLoader or batches.num_workers or batches.pin_memory or batches.batch_sampler is None:
        return batches
    # Datapipes are given a seed by torch's iterator.
    return batches if isinstance(batches.dataset, IterableDataset | MapDataPipe) else _Direct(batches)


class _Direct:
    """Iterates over a loader's batches."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._order: Any = loader.batch_sampler
        self._gathers = loader.collate_fn is default_collate and _is_gatherable(loader.dataset)

    def __iter__(self) -> Iterator[Any]:
        order = iter(self._order)
        # torch's own iterator then draws a seed for its workers, also where there are none.
        torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        return self._batches(order)

    def _batches(self, order: Iterator[Any]) -> Iterator[Any]:
        data: Any = self._loader.dataset
        for indices in order:
            if self._gathers:
                yield _rows(data, indices)
            elif getattr(data, "__getitems__", None):
                yield self._loader.collate_fn(data.__getitems__(indices))
            else:
                yield self._loader.collate_fn([data[index] for index in indices])


def _is_gatherable(data: Dataset[Any]) -> bool:
    if type(data) is Subset:
        return _is_gatherable(data.dataset)
    # Rows of other tensors would be stacked to another layout, or as part of a graph.
    return type(data) is TensorDataset and all(
        type(tensor) is torch.Tensor and tensor.is_contiguous() and not tensor.requires_grad for tensor in data.tensors
    )


def _rows(data: Any, indices: Sequence[int]) -> list[torch.Tensor]:
    """Of the tensors of a dataset, the rows asked for."""
    while isinstance(data, Subset):
        indices, data = [data.indices[index] for index in indices], data.dataset
    chosen = torch.as_tensor(indices)
    return [tensor[chosen] for tensor in data.tensors]
