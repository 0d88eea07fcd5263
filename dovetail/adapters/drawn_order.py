"""The order in which a training loop with the process's random numbers to itself goes through a `DataLoader`.

Samplers of torch draw from its global generator when an epoch begins, and so does each iterator of a loader, for its
workers. Lightning and transformers let that generator run on from epoch to epoch. Dovetail keys it, so that a task
that was stopped goes on as if it had not been; here the order is drawn from a copy of the generator instead, as it
stood when the training was built. Knows loaders; knows nothing of trainers.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from dovetail.vocabulary import ProgramError

Loader = DataLoader[Any]


def keep_order(
    loader: Any, *, limit: int | None = None, validations: Callable[[int], Sequence[Any]] = lambda epoch: ()
) -> Any:
    """The same batches in the order in which a loop that begins now would take them, at most `limit` an epoch.

    `validations` gives the loaders that the loop goes through in an epoch beside this one: each draws, too.

    >>> _ = torch.manual_seed(0)
    >>> loader = DataLoader(torch.arange(6), batch_size=3, shuffle=True)
    >>> kept = keep_order(loader)
    >>> plain = [batch.tolist() for epoch in range(2) for batch in loader]
    >>> [batch.tolist() for epoch in range(2) for batch in kept] == plain
    True
    """
    is_ordered = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not is_ordered or loader.batch_sampler is None:
        if limit is not None:
            raise ProgramError(
                f"batches must be asked for by number where an epoch is to have {limit} of them; these are given in an "
                f"order of their own. Give a DataLoader over a dataset with __getitem__, or a shorter dataset."
            )
        return loader
    if limit is None and not _draws_from_global(loader.batch_sampler):
        return loader
    return reorder(loader, DrawnOrder(loader, limit=limit, validations=validations))


def reorder(loader: Loader, order: Any) -> Loader:
    """A plain loader of torch over the same items, which takes its batches in another order."""
    return DataLoader(
        loader.dataset,
        batch_sampler=order,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory and torch.cuda.is_available(),  # elsewhere torch only warns of it
        worker_init_fn=loader.worker_init_fn if loader.num_workers else None,
        prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
    )


class DrawnOrder(Sampler[Any]):
    """The numbers of a loader's batches, drawn epoch after epoch from a generator of their own.

    An epoch counts when it has been gone through, so that looking at its first batch changes nothing.
    """

    def __init__(self, loader: Loader, *, limit: int | None, validations: Callable[[int], Sequence[Any]]) -> None:
        self._loader, self._limit, self._validations = loader, limit, validations
        self._states = {0: torch.get_rng_state()}  # how the generator stands as an epoch begins
        self._epoch = 0

    def __len__(self) -> int:
        count = len(self._loader)
        return count if self._limit is None else min(count, self._limit)

    def __iter__(self) -> Iterator[Any]:
        yield from self._draw(self._epoch)
        self._epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Give this epoch's order next."""
        self._epoch = epoch

    def _draw(self, epoch: int) -> list[Any]:
        known = max(number for number in self._states if number <= epoch)
        found: list[Any] = []
        with _generator_at(self._states[known]):
            for number in range(known, epoch + 1):
                found = _draw_batches(self._loader, epoch=number, limit=self._limit)
                for loader in self._validations(number):
                    # One with a generator of its own draws nothing from the global one.
                    if isinstance(loader, DataLoader) and loader.generator is None:
                        _draw_batches(loader, epoch=number, limit=None)
                self._states[number + 1] = torch.get_rng_state()
        self._states = {number: state for number, state in self._states.items() if number in (0, epoch, epoch + 1)}
        return found


def _draw_batches(loader: Loader, *, epoch: int, limit: int | None) -> list[Any]:
    order: Any = loader.batch_sampler
    for each in (order, getattr(order, "sampler", None)):
        if each is not None and hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
    batches = iter(order) if order is not None else iter(())  # an iterable dataset has its own order
    # torch's own iterator draws a seed for its workers before it asks for the first batch.
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return list(itertools.islice(batches, limit))


def _draws_from_global(order: Any) -> bool:
    """Whether an order may draw from torch's global generator. Others than torch's own are taken to."""
    sampler = getattr(order, "sampler", order)
    if type(order) is BatchSampler and type(sampler) is SequentialSampler:
        return False
    return not isinstance(getattr(sampler, "generator", None), torch.Generator)


@contextlib.contextmanager
def _generator_at(state: torch.Tensor) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)
