"""Who reads the weights of a segment without calling it.

A streamed weight is where it should be only while its segment's modules run. A program may read it elsewhere, and where
autograd does not keep what was read, nothing else would notice: the number read may be an old one. And a program may
switch autocast off around a layer whose weights travel as autocast would have them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dovetail.train.loop import tensors_in
from dovetail.train.spill.segment_streamer import UsedWhileAway
from dovetail.train.spill.segments import Entry, LiveSegment

# Properties that give a tensor's values; the others (shape, dtype, device) only say something about it.
_VALUES = {"data", "T", "H", "mT", "mH", "real", "imag"}
_QUESTIONS = {
    *("size", "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset", "is_contiguous"),
    *("is_floating_point", "is_complex", "is_signed", "get_device", "requires_grad_", "register_hook", "__len__"),
    *("__hash__", "__repr__", "data_ptr", "untyped_storage", "register_post_accumulate_grad_hook"),
}


class UsedInFull(Exception):
    """A weight that travels in less than its own precision is used where autocast is off."""

    def __init__(self, segment: LiveSegment, entry: Entry) -> None:
        super().__init__(f"{entry.name!r} must be as precise as it is; it is used where autocast is off.")
        self.segment, self.entry = segment, entry


class StrayReads(TorchFunctionMode):
    """Within, reading a streamed weight while its segment does not run raises `UsedWhileAway`, and with `autocast`,
    using one that is rounded already where that is off raises `UsedInFull`.

    It looks at every call of torch's, so it is for first steps and evaluations.
    """

    def __init__(self, segments: list[LiveSegment], *, runs: Callable[[LiveSegment], bool], autocast: bool) -> None:
        super().__init__()
        self._owners = {id(entry.leaf): (segment, entry) for segment in segments for entry in segment.entries}
        self._runs, self._autocast = runs, autocast

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Look at what a function is given, then call it. Called by torch."""
        if not _only_asks(func):
            for tensor in tensors_in((args, kwargs)):
                segment, entry = self._owners.get(id(tensor), (None, None))
                if segment is None or entry is None:
                    continue
                if not segment.kept and not self._runs(segment):
                    raise UsedWhileAway(segment)
                rounded = self._autocast and entry.dtype != entry.master.dtype
                if rounded and not torch.is_autocast_enabled(entry.leaf.device.type):
                    raise UsedInFull(segment, entry)
        return func(*args, **(kwargs or {}))


def _only_asks(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") not in _VALUES
    return name == "__set__" or name in _QUESTIONS
