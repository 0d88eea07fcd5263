"""Loaders that give what a `DataLoader` of torch gives, with less work: only its order, or whole batches at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy
import numpy.typing
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from dovetail.feeds.generators import generators_in

Gather = Callable[[Sequence[int]], Any]
Places = numpy.typing.NDArray[numpy.int64]
# To look at the rows of a longer list takes longer than a short training would win by it.
_MOST_ROWS = 100_000


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


def draws_at_first(batches: Any) -> bool:
    """Whether reading these batches draws random numbers at most when an epoch begins, with its first batch: of lists,
    and of torch's own loaders over rows of tensors in torch's own orders.

    >>> draws_at_first([1, 2]), draws_at_first(DataLoader(TensorDataset(torch.arange(6)), shuffle=True))
    (True, True)
    """
    if isinstance(batches, list | tuple):
        return True
    if not isinstance(direct(batches), _Direct) or batches.collate_fn is not default_collate:
        return False
    data, order = batches.dataset, batches.batch_sampler
    while type(data) is Subset:
        data = data.dataset
    own_order = type(order) is BatchSampler and type(order.sampler) in (SequentialSampler, RandomSampler)
    return own_order and type(data) in (TensorDataset, torch.Tensor, list)


class _Direct:
    """Iterates over a loader's batches."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._order: Any = loader.batch_sampler
        self._gather = _make_gather(loader.dataset)

    def __iter__(self) -> Iterator[Any]:
        order = iter(self._order)
        # torch's own iterator then draws a seed for its workers, also where there are none.
        torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        return map(self._read, order)

    def _read(self, indices: Sequence[Any]) -> Any:
        data: Any = self._loader.dataset
        collate = self._loader.collate_fn
        if collate is default_collate and self._gather is not None and (batch := self._gather(indices)) is not None:
            return batch
        if getattr(data, "__getitems__", None):
            return collate(data.__getitems__(indices))
        return collate([data[index] for index in indices])


def _make_gather(data: Any) -> Gather | None:
    """What reads a batch by one indexing of each tensor of a dataset, and gives None once its items must be asked for;
    None where they must from the beginning."""
    if type(data) is Subset:
        inner = _make_gather(data.dataset)
        return inner and (lambda indices: inner([data.indices[index] for index in indices]))
    if type(data) is TensorDataset:
        return lambda indices: _rows(data.tensors, indices)
    if type(data) is torch.Tensor:
        return lambda indices: (rows := _rows([data], indices)) and rows[0]
    return _RowGather(data) if type(data) is list else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Rows of other tensors would be stacked to another layout, or as part of a graph."""
    return type(tensor) is torch.Tensor and tensor.is_contiguous() and not tensor.requires_grad


def _rows(tensors: Sequence[torch.Tensor], indices: Sequence[int]) -> list[torch.Tensor] | None:
    chosen = torch.from_numpy(numpy.asarray(indices))  # torch itself takes ten times as long to read a list
    return [tensor[chosen] for tensor in tensors] if all(map(_is_plain, tensors)) else None


class _RowGather:
    """The same for a list of tuples of rows of tensors, such as `list(zip(images, labels))`. Those rows are views, so
    whatever is written to them is seen; a tuple that is replaced is not, so each is looked at.

    To look at all rows takes as long as to read some batches, so the first one is read without: whoever only looks at
    a training reads no more.
    """

    def __init__(self, data: list[Any]) -> None:
        self._data = data
        self._calls = 0
        self._kept: list[Any] = []
        self._columns: list[tuple[torch.Tensor, Places]] | None = None

    def __call__(self, indices: Sequence[int]) -> list[torch.Tensor] | None:
        """A batch, or None where its items must be asked for."""
        self._calls += 1
        if self._calls == 2:
            self._kept, self._columns = list(self._data), _columns_of(self._data)
        data, kept = self._data, self._kept
        if self._columns is None or len(data) != len(kept) or not all(data[index] is kept[index] for index in indices):
            return None
        chosen = numpy.asarray(indices)
        return [base[torch.from_numpy(places[chosen])] for base, places in self._columns]


def _columns_of(data: list[Any]) -> list[tuple[torch.Tensor, Places]] | None:
    """For each place in the tuples of a list the tensor whose rows stand there, and which; None where there is none."""
    if not 1 < len(data) <= _MOST_ROWS or {type(item) for item in data} != {tuple} or len({*map(len, data)}) > 1:
        return None
    columns = [_as_rows(column) for column in zip(*data, strict=True)]
    found = [column for column in columns if column is not None]
    return found if columns and len(found) == len(columns) else None


def _as_rows(column: Sequence[Any]) -> tuple[torch.Tensor, Places] | None:
    """The tensor of which all of these are rows, and which."""
    base: Any = getattr(column[0], "_base", None)
    if base is None or not _is_plain(base) or not base.dim() or not base.numel():
        return None
    shape, stride, apart = base.shape[1:], base.stride()[1:], base.stride(0)
    for row in column:
        if type(row) is not torch.Tensor or row._base is not base or (row.shape, row.stride()) != (shape, stride):
            return None
    offsets = numpy.array([row.storage_offset() for row in column]) - base.storage_offset()
    return (base, offsets // apart) if not (offsets % apart).any() else None
