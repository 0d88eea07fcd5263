"""Items put together to a batch, with a message that says which of them do not fit together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data._utils.collate import collate as collate_by
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from dovetail.vocabulary import ProgramError

# Smaller ones are reused by whoever allocates next.
_LARGE_BYTES = 1 << 16


def collate(items: Sequence[Any], *, where: str = "a batch") -> Any:
    """One batch of items of one shape, as torch's `default_collate` makes it.

    >>> collate([torch.zeros(2), torch.ones(2)])
    tensor([[0., 0.],
            [1., 1.]])
    """
    try:
        return collate_by(list(items), collate_fn_map=_FUNCTIONS)
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


def _stack(tensors: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """What torch makes of tensors, in memory that NumPy has asked the system for. On some processors torch's own
    allocator never gives back what one thread allocates and another frees, as a batch is that a worker makes and a
    training drops: a feed of 4 MiB batches grew by 4 MiB with each."""
    first = tensors[0]
    if len(tensors) * first.nbytes < _LARGE_BYTES or not all(_is_plain(each, first.dtype) for each in tensors):
        found: torch.Tensor = collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return found
    memory = numpy.empty(len(tensors) * first.nbytes, dtype=numpy.uint8)
    return torch.stack(tensors, out=torch.from_numpy(memory).view(first.dtype).view(len(tensors), *first.shape))


def _is_plain(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    strided = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return strided and tensor.dtype is dtype and tensor.device.type == "cpu" and not tensor.requires_grad


def _gather(numbers: list[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    """What torch makes of numbers, through NumPy, which looks at each in a tenth of the time where all are alike."""
    kind = type(numbers[0])
    if kind in _NUMBERS and len(set(map(type, numbers))) == 1:
        gathered = numpy.array(numbers)
        if gathered.dtype == _NUMBERS[kind]:  # and not larger than that holds
            return torch.from_numpy(gathered)
    found: torch.Tensor = _torch_function(kind)(numbers, collate_fn_map=collate_fn_map)
    return found


def _torch_function(kind: type) -> Any:
    return next(function for kinds, function in default_collate_fn_map.items() if issubclass(kind, kinds))


# Of others torch makes something else, or nothing.
_NUMBERS: dict[type, Any] = {int: numpy.dtype("int64"), float: numpy.dtype("float64")}
_NUMBERS |= {numpy.dtype(name).type: numpy.dtype(name) for name in ("float16", "float32", "float64", "bool")}
_NUMBERS |= {numpy.dtype(name).type: numpy.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8")}
_OF_NUMPY = (numpy.bool_, numpy.number, numpy.object_)
_FUNCTIONS = {**default_collate_fn_map, torch.Tensor: _stack, int: _gather, float: _gather, _OF_NUMPY: _gather}


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
