"""Batches of several members as one: what shape they are of, stacked tensors, and a first batch without taking it."""

import contextlib
import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

from dovetail.feeds import FeedView, RunningFeed, RunningLoader
from dovetail.feeds.cursor import digest
from dovetail.feeds.generators import generators_in, put_back
from dovetail.train.staged_batches import StagedBatches
from dovetail.vocabulary import ProgramError, TechniqueRefused

Form = tuple[Any, ...]
"""The containers, shapes, types and plain values of a batch; equal forms can be stacked."""


def flatten(batch: Any) -> tuple[Form, list[torch.Tensor]]:
    """The form of a batch, and its tensors in order.

    >>> form, tensors = flatten({"x": torch.ones(2), "n": 3})
    >>> rebuild(form, iter([torch.zeros(2)]))
    {'x': tensor([0., 0.]), 'n': 3}
    """
    tensors: list[torch.Tensor] = []
    return _form(batch, tensors), tensors


def _form(batch: Any, tensors: list[torch.Tensor]) -> Form:
    if isinstance(batch, torch.Tensor):
        tensors.append(batch)
        return ("tensor", batch.shape, batch.dtype)
    if isinstance(batch, list | tuple):
        return ("sequence", type(batch), tuple([_form(value, tensors) for value in batch]))
    if isinstance(batch, Mapping):
        return ("mapping", type(batch), tuple(batch), tuple([_form(value, tensors) for value in batch.values()]))
    try:
        hash(batch)
    except TypeError:
        raise TechniqueRefused(
            f"batches must be tensors and plain values in lists, tuples and mappings; there is a {type(batch).__name__}"
        ) from None
    return ("value", batch)


def rebuild(form: Form, tensors: Iterator[torch.Tensor]) -> Any:
    """A batch of this form from its tensors."""
    word, *rest = form
    if word == "tensor":
        return next(tensors)
    if word == "value":
        return rest[0]
    parts = [rebuild(part, tensors) for part in rest[-1]]
    if word == "mapping":
        return rest[0](dict(zip(rest[1], parts, strict=True)))
    return rest[0](*parts) if hasattr(rest[0], "_fields") else rest[0](parts)


def stack(rows: Sequence[Sequence[torch.Tensor]], device: torch.device) -> list[torch.Tensor]:
    """For each place in the form, the members' tensors as one on the device."""
    found = []
    for tensors in zip(*rows, strict=True):
        if device.type == "cpu" or tensors[0].device.type != "cpu":
            found.append(torch.stack([each if each.device == device else each.to(device) for each in tensors]))
        else:  # one copy from pinned memory, which nothing waits for
            shape = (len(tensors), *tensors[0].shape)
            pinned = torch.empty(shape, dtype=tensors[0].dtype, pin_memory=True)
            found.append(torch.stack(tensors, out=pinned).to(device, non_blocking=True))
    return found


def peek_first(batches: Any) -> Any:
    """The first batch, with everything put back as if it had not been taken.

    >>> peek_first([1, 2])
    1
    """
    with keep_position(batches):
        found = read_first(batches)
    with keep_position(batches):
        if digest(read_first(batches)) != digest(found):
            raise TechniqueRefused(
                "the first batch must be the same whenever it is looked at; this one is not. Let the order of batches "
                "depend on a generator that they hold, or on the task's seed"
            )
    return found


def read_first(batches: Any) -> Any:
    """Read the first batch, without the processes that a loader would start for more."""
    batches = batches.loader if isinstance(batches, RunningLoader) else batches
    source = batches.definition if isinstance(batches, RunningFeed | FeedView | StagedBatches) else batches
    if isinstance(batches, DataLoader) and batches.num_workers and batches.batch_sampler is not None:
        source = DataLoader(batches.dataset, batch_sampler=batches.batch_sampler, collate_fn=batches.collate_fn)
    for batch in source:
        return batch
    raise ProgramError("batches must give at least one each time they are iterated; there was none.")


@contextlib.contextmanager
def keep_position(batches: Any) -> Iterator[None]:
    """Let batches be taken within; afterwards generators, counters and the batches' own state are as before."""
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    again = [put_back(generator) for generator in generators_in(batches)]
    own = batches.state_dict() if hasattr(batches, "load_state_dict") and hasattr(batches, "state_dict") else None
    own, counters = copy.deepcopy(own), dict(vars(batches)) if hasattr(batches, "__dict__") else {}
    try:
        yield
    finally:
        if counters:
            vars(batches).update(counters)
        if own is not None:
            batches.load_state_dict(own)
        for put in again:
            put()
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)
