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
    the bit: torch's own loader over a `TensorDataset`, a subset of one, or a list of rows, in this process. Others as
    they are.

    >>> data = TensorDataset(torch.arange(6.0), torch.arange(6))
    >>> [rows.tolist() for rows, _ in gathered(DataLoader(data, batch_size=4))]
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    """
    if type(batches) is not DataLoader or batches.num_workers or batches.pin_memory or batches.batch_sampler is None:
        return batches
    if batches.collate_fn is not default_collate or (rows := _rows_at_once(batches.dataset)) is None:
        return batches
    return DataLoader(rows, batch_sampler=batches.batch_sampler, generator=batches.generator, collate_fn=list)


def _rows_at_once(data: Any) -> Dataset[Any] | None:
    if type(data) is Subset:
        whole = _rows_at_once(data.dataset)
        return None if whole is None else _PartAtOnce(whole, data.indices)
    if type(data) is TensorDataset:
        return _TensorsAtOnce(data.tensors) if all(map(_is_plain, data.tensors)) else None
    return _ListAtOnce(data) if type(data) is list and _is_table(data) else None


def _is_plain(tensor: Any) -> bool:
    # Rows of others would be stacked to another layout, or as part of a graph.
    plain = type(tensor) is torch.Tensor and tensor.is_contiguous()
    return plain and not (tensor.requires_grad or tensor.is_inference())


def _is_table(data: list[Any]) -> bool:
    """Whether all items are tuples of tensors of the same types and shapes, and not too many to have them twice."""
    if not data or type(data[0]) is not tuple or not all(map(_is_plain, data[0])):
        return False
    if len(data) * sum(tensor.nbytes for tensor in data[0]) > _MOST_BYTES:
        return False
    form = [(tensor.dtype, tensor.shape, tensor.device) for tensor in data[0]]
    return all(
        type(row) is tuple
        and len(row) == len(form)
        and all(_is_plain(x) and (x.dtype, x.shape, x.device) == f for x, f in zip(row, form, strict=True))
        for row in data
    )


# Of a list's rows, stacked anew at each epoch.
_MOST_BYTES = 64 << 20


class _TensorsAtOnce(Dataset[Any]):
    """Of these tensors, the rows asked for."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        chosen = torch.as_tensor(indices)
        return [tensor[chosen] for tensor in self._tensors]


class _PartAtOnce(Dataset[Any]):
    """Rows of a part by their numbers in it."""

    def __init__(self, whole: Any, indices: Sequence[int]) -> None:
        self._whole, self._indices = whole, indices

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self._whole.__getitems__([self._indices[index] for index in indices])
        return found


class _ListAtOnce(Dataset[Any]):
    """Of a list of rows, those asked for. Where one was changed since they were stacked, it is as it is now."""

    def __init__(self, rows: list[Any]) -> None:
        self._live, self._rows = rows, list(rows)
        self._versions = [_versions(row) for row in rows]
        self._stacked = _TensorsAtOnce([torch.stack(column) for column in zip(*rows, strict=True)])

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        wanted = [self._live[index] for index in indices]
        same = all(
            row is self._rows[index] and _versions(row) == self._versions[index]
            for index, row in zip(indices, wanted, strict=True)
        )
        if same:
            return self._stacked.__getitems__(indices)
        collated: list[torch.Tensor] = default_collate(wanted)
        return collated


def _versions(row: tuple[torch.Tensor, ...]) -> list[int]:
    return [tensor._version for tensor in row]
