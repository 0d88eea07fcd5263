"""`@df.offload`: a function on the host with a counterpart on a device, each called where it is faster for that size.

Which is faster is measured, per class of sizes: a few calls of each, then the better. Data larger than what the device
has room for goes through it piece by piece, where the function works row by row; where even pieces do not fit, the host
computes.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy

from dovetail.frame.device_pieces import DeviceFull, DeviceRefuses, has_device, run_in_pieces
from dovetail.frame.placement import PlaceSeconds
from dovetail.vocabulary import DovetailError

rows = "rows"
"""What `split` says of a function whose rows do not depend on each other."""


class OffloadedFunction:
    """A function with a counterpart on a device. Made by `df.offload`; called with NumPy arrays like the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        on_device: Callable[..., Any],
        split: str | None,
        device: str,
        memory_bytes: int | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._on_device = function, on_device
        self._split, self._device, self._memory_bytes = split, device, memory_bytes
        self._seconds: dict[int, PlaceSeconds] = {}
        self._last = "not called yet"

    def __call__(self, *args: Any) -> Any:
        size = sum(arg.nbytes for arg in args if isinstance(arg, numpy.ndarray))
        known = self._seconds.setdefault(size.bit_length(), PlaceSeconds())
        place = known.choose(self._places())
        began = time.perf_counter()
        refused = ""
        try:
            found = self._function(*args) if place == "host" else self._run_on_device(args)
        except DeviceRefuses as error:
            known.give_up(place)
            refused = f"the device has no room: {error}" if isinstance(error, DeviceFull) else str(error)
        if refused:  # and what was on the device is let go of
            self._last = f"host, since {refused}"
            return self._function(*args)
        seconds = time.perf_counter() - began
        known.add(place, seconds)
        self._last = f"{place}, {seconds:.3g} s; so far {known.describe()} at this size"
        return found

    def explain(self) -> str:
        """Where the last call ran, and why.

        >>> import numpy, dovetail.frame as df
        >>> doubled = df.offload(cuda=lambda x: x * 2, device="cpu")(lambda x: x * 2)
        >>> doubled(numpy.arange(3.0))
        array([0., 2., 4.])
        >>> doubled.explain().split(",")[0]
        '<lambda>: host'
        """
        return f"{self._function.__name__}: {self._last}"

    def _places(self) -> list[str]:
        return ["host", self._device] if has_device(self._device) else ["host"]

    def _run_on_device(self, args: tuple[Any, ...]) -> Any:
        return run_in_pieces(
            self._on_device,
            args,
            device=self._device,
            split=self._split == rows,
            memory_bytes=self._memory_bytes,
        )


def offload(
    *, cuda: Callable[..., Any], split: str | None = None, device: str = "cuda", memory_bytes: int | None = None
) -> Callable[[Callable[..., Any]], OffloadedFunction]:
    """Give a function on NumPy arrays a counterpart on torch tensors, which is called where it is faster.

    `split=df.rows` says that rows do not depend on each other, so that data larger than the device's memory, or than
    `memory_bytes`, go through it in pieces. These are computed one after another, but the results of one are fetched
    while the next is computed, so they must not lie in the same memory of the device. Where there is no such device the
    function itself is called.

    >>> import numpy, torch, dovetail.frame as df
    >>> @df.offload(cuda=lambda x, y: torch.hypot(x, y), split=df.rows)
    ... def distance(x, y):
    ...     return numpy.hypot(x, y)
    >>> distance(numpy.array([3.0]), numpy.array([4.0]))
    array([5.])
    """
    if split not in (None, rows):
        raise DovetailError(f"split must be df.rows or None, got {split!r}.")

    def decorate(function: Callable[..., Any]) -> OffloadedFunction:
        return OffloadedFunction(function, on_device=cuda, split=split, device=device, memory_bytes=memory_bytes)

    return decorate
