"""Items put together to a batch, with a message that says which of them do not fit together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import default_collate

from dovetail.vocabulary import ProgramError


def collate(items: Sequence[Any], *, where: str = "a batch") -> Any:
    """One batch of items of one shape, as torch's `default_collate` makes it.

    >>> collate([torch.zeros(2), torch.ones(2)])
    tensor([[0., 0.],
            [1., 1.]])
    """
    try:
        return default_collate(list(items))
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        forms = [form_of(item) for item in items]
        unlike = next((number for number, form in enumerate(forms) if form != forms[0]), None)
        if unlike is None:
            raise ProgramError(
                f"batch must be given tensors, arrays, numbers or texts, or give batch(collate=...) a function for "
                f"others; {where} has {forms[0]}: {error}"
            ) from error
        raise ProgramError(
            f"items of a batch must be alike; in {where} item 1 is {forms[0]} and item {unlike + 1} is "
            f"{forms[unlike]}. Crop or pad them in a stage before, or give batch(collate=...) a function."
        ) from error


def form_of(item: Any) -> str:
    """The types and shapes in an item, in words.

    >>> form_of({"image": numpy.zeros((3, 8), dtype="uint8"), "label": 3})
    '{image: uint8[3, 8], label: int}'
    """
    if isinstance(item, torch.Tensor | numpy.ndarray):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key}: {form_of(value)}" for key, value in item.items()) + "}"
    if isinstance(item, list | tuple):
        return "(" + ", ".join(form_of(value) for value in item[:8]) + ")"
    return type(item).__name__
