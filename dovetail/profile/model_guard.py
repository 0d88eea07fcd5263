"""Measure a model and leave it as it was: gradients, buffers, modes, device, hooks and random numbers.

Parameters are not copied, since nothing here takes an optimizer step; a model whose forward writes to its own
parameters is beyond this. Knows torch; knows nothing of what is measured.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.train.weights import Buffers


@contextlib.contextmanager
def untouched(model: nn.Module, *, device: torch.device) -> Iterator[None]:
    """Within, the model is on `device`, in training mode and without gradients; after, it is as before.

    >>> model = nn.BatchNorm1d(2).eval()
    >>> with untouched(model, device=torch.device("cpu")):
    ...     _ = model(torch.randn(3, 2))
    >>> model.training, int(model.num_batches_tracked)
    (False, 0)
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(random_state(device))
        stack.enter_context(_on_device(model, device))
        stack.callback(Buffers(model.modules()).put_back)
        stack.enter_context(_gradients(model))
        stack.enter_context(_modes(model))
        yield


@contextlib.contextmanager
def random_state(device: torch.device) -> Iterator[None]:
    """Put Python's, NumPy's and torch's random numbers back where they stood.

    >>> with random_state(torch.device("cpu")):
    ...     before = random.random()
    >>> random.random() == before
    True
    """
    python, numbers = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(numbers)


@contextlib.contextmanager
def hooks() -> Iterator[list[Any]]:
    """A list for the handles of hooks, all of which are removed at the end.

    >>> model = nn.Linear(1, 1)
    >>> with hooks() as handles:
    ...     handles.append(model.register_forward_hook(print))
    >>> len(model._forward_hooks)
    0
    """
    handles: list[Any] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) != 1 or devices == {device}:
        yield  # spread over several devices by the program itself, or there already
        return
    (home,) = devices
    model.to(device)
    try:
        yield
    finally:
        model.to(home)


@contextlib.contextmanager
def _gradients(model: nn.Module) -> Iterator[None]:
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    forget_gradients(model)
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def forget_gradients(model: nn.Module) -> None:
    """Drop the gradients of a model's parameters."""
    for parameter in model.parameters():
        parameter.grad = None


@contextlib.contextmanager
def _modes(model: nn.Module) -> Iterator[None]:
    kept = [(module, module.training) for module in model.modules()]
    if not model.training:  # as sessions do: parts that the program itself put into evaluation mode stay there
        model.train()
    try:
        yield
    finally:
        for module, mode in kept:
            module.training = mode
