"""Loaders that give what a `DataLoader` of torch gives, with less work: only its order, or whole batches at once."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from dovetail.feed.generators import generators_in


def indices_only(loader: "DataLoader[Any]") -> Iterable[Any]:
    """A loader over the indices: with the same sampler and generator it draws the same numbers and loads nothing."""
    # One with persistent workers draws for them once only, so it must be iterated itself, as must one whose items are
    # given, not asked for, or draw from a generator that is carried from epoch to epoch.
    data = loader.dataset
    asked_for = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset) and loader.batch_sampler
    if not asked_for or loader.persistent_workers or next(generators_in(data), None):
        return loader
    return DataLoader(_Indices(), batch_sampler=loader.batch_sampler, generator=loader.generator, collate_fn=list)


class _Indices(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return index


def gathered(batches: Any) -> Any:
    """The same batches, each taken from its tensors by one indexing instead of row by row, where that is the same to
    the bit: torch's own loader over a `TensorDataset` (or a subset of one), in this process. Others as they are.

    >>> data = TensorDataset(torch.arange(6.0), torch.arange(6))
    >>> [rows.tolist() for rows, _ in gathered(DataLoader(data, batch_size=4))]
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    """
    if type(batches) is not DataLoader or batches.num_workers or batches.pin_memory or batches.batch_sampler is None:
        return batches
    if batches.collate_fn is not default_collate or not _is_gatherable(batches.dataset):
        return batches
    rows = _RowsAtOnce(batches.dataset)
    return DataLoader(rows, batch_sampler=batches.batch_sampler, generator=batches.generator, collate_fn=list)


def _is_gatherable(data: Dataset[Any]) -> bool:
    if type(data) is Subset:
        return _is_gatherable(data.dataset)
    # Rows of other tensors would be stacked to another layout, or as part of a graph.
    return type(data) is TensorDataset and all(
        type(tensor) is torch.Tensor and tensor.is_contiguous() and not tensor.requires_grad for tensor in data.tensors
    )


class _RowsAtOnce(Dataset[Any]):
    """Of the tensors of a dataset, the rows asked for."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        data: Any = self._data
        while isinstance(data, Subset):
            indices, data = [data.indices[index] for index in indices], data.dataset
        chosen = torch.as_tensor(indices)
        return [tensor[chosen] for tensor in data.tensors]
