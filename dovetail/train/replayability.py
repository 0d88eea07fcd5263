"""What keeps a step from being replayed, found by looking at plain ones: where the host waits for the device, what
forward changes in Python, and whether two ways to the same numbers have led there."""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.randomness import Seeding, carried_state, host_drew


@contextlib.contextmanager
def noting_waits() -> Iterator[list[str]]:
    """Where the host waits for the device within, which a graph cannot: files and lines."""
    waits: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for each in warned:
        if "synchronizing CUDA operation" in str(each.message):
            waits.append(f"{os.path.basename(each.filename)}:{each.lineno}")
        elif "debug mode" not in str(each.message):  # which torch calls a prototype
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


class SeenSeedings:
    """The seedings of a step. They are written down, and left to whom they belong."""

    def __init__(self) -> None:
        self.seedings: list[Seeding] = []
        self.in_backward = self._drew = False
        self._carried = carried_state()

    def note(self, seeding: Seeding) -> bool:
        """Note a seeding of the device's generator; `KeyedRandomness.seeding` calls this before each."""
        if self.seedings and seeding[1] is None:  # another microbatch begins, and the host's generator anew
            self._drew |= host_drew()
        self.seedings.append(seeding)
        self.in_backward |= torch._C._current_graph_task_id() != -1
        return False

    def drew_on_host(self) -> bool:
        """Whether numbers were drawn on the host, by which Python may decide what the device does."""
        return self._drew or host_drew() or carried_state() != self._carried


def loose_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """What forward may change by itself: buffers, and tensors that are attributes of modules.

    >>> len(list(loose_tensors(nn.BatchNorm1d(2))))
    3
    """
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def attributes_of(model: nn.Module) -> dict[str, Any]:
    """What Python may change in a model's modules and a graph would not: plain values, how long containers are, and
    which tensors there are, kept alive so that no other can be taken for one of them.

    >>> model = nn.BatchNorm1d(2)
    >>> before = attributes_of(model)
    >>> model.running_mean.add_(1.0) is model.running_mean, first_change(before, attributes_of(model))
    (True, '')
    >>> model.running_mean = model.running_mean + 1
    >>> first_change(before, attributes_of(model))
    'running_mean'
    """
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items(), *module._parameters.items()):
            if isinstance(value, torch.Tensor):
                found[f"{path}.{name}".lstrip(".")] = _VerySame(value)
            elif isinstance(value, bool | int | float | str | None):
                found[f"{path}.{name}".lstrip(".")] = repr(value)
            elif isinstance(value, list | dict | set) and not name.startswith("_"):
                found[f"{path}.{name}".lstrip(".")] = len(value)
    return found


class _VerySame:
    """Equal to another of the very same object only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _VerySame) and self._value is other._value

    __hash__ = object.__hash__


def first_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The name of an attribute that is not what it was; empty where all are.

    >>> first_change({"calls": "1"}, {"calls": "2"})
    'calls'
    """
    names = dict.fromkeys([*before, *after])
    return next((name for name in names if before.get(name) != after.get(name)), "")


def checksums(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Where tensors lie and the sum of their bits: what changes them through `.data` is counted by nobody.

    >>> tensor = torch.ones(3)
    >>> before = checksums([tensor])
    >>> tensor.data.mul_(2) is tensor, checksums([tensor]) == before
    (False, False)
    """
    plain = [torch.view_as_real(each.detach()) if each.is_complex() else each.detach() for each in tensors]
    sums = [each.flatten().view(_INTEGERS[each.element_size()]).sum(dtype=torch.int64) for each in plain]
    found = torch.stack(sums).tolist() if sums else []
    return list(zip([each.data_ptr() for each in tensors], found, strict=True))


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def distance(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """How far tensors are apart, all together, as a part of their size. Infinities must be the same.

    >>> round(distance([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.1])]), 4)
    0.0197
    >>> infinite = torch.tensor([1.0, float("inf")])
    >>> distance([infinite], [infinite]), distance([infinite], [infinite[:1].repeat(2)])
    (0.0, inf)
    """
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in expected]:
        return math.inf
    if not found:
        return 0.0
    pairs = [(_real(one), _real(other)) for one, other in zip(found, expected, strict=True)]
    apart = torch.stack([torch.where(one == other, 0.0, one - other).norm() for one, other in pairs]).norm()
    size = torch.stack([torch.nan_to_num(other, posinf=0.0, neginf=0.0).norm() for _, other in pairs]).norm()
    found_apart = float(apart / size) if apart else 0.0
    return math.inf if math.isnan(found_apart) else found_apart


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor.detach()).float()
