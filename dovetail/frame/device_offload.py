"""`@df.offload`: a function on the host with a counterpart on a device, each called where it is faster for that size.

Which is faster is measured, per class of sizes: a few calls of each, then the better. Data larger than what the device
has room for goes through it piece by piece, where the function works row by row; a device that runs out of memory gets
smaller pieces, and where even those do not fit, the host computes. torch is imported at the first call.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from dovetail.vocabulary import DovetailError

rows = "rows"
"""What `split` says of a function whose rows do not depend on each other."""

_TRIES = 3
_LEAST_ROWS = 1024
# Copies, kernels and copies back of neighbouring pieces overlap; so each piece has its arrays on the device at once.
_PIECES_AT_ONCE = 3


@dataclasses.dataclass(slots=True)
class PlaceSeconds:
    """How long calls of one class of sizes took, at each place; the first of each is not counted, since it compiles."""

    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    least: dict[str, float] = dataclasses.field(default_factory=dict)

    def choose(self, places: Sequence[str]) -> str:
        """A place that was not tried often enough, or else the fastest."""
        for place in places:
            if self.calls.get(place, 0) <= _TRIES:
                return place
        return min(places, key=lambda place: self.least[place])

    def add(self, place: str, seconds: float) -> None:
        count = self.calls[place] = self.calls.get(place, 0) + 1
        if count > 1:
            self.least[place] = min(seconds, self.least.get(place, seconds))


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
        try:
            found = self._function(*args) if place == "host" else self._run_on_device(args)
        except _DeviceFull as error:
            known.calls[place], known.least[place] = _TRIES + 1, float("inf")
            self._last = f"host, since the device has no room: {error}"
            return self._function(*args)
        seconds = time.perf_counter() - began
        known.add(place, seconds)
        self._last = f"{place}, {seconds:.3g} s; so far {self._told(known)} at this size"
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
        return ["host", self._device] if _is_there(self._device) else ["host"]

    def _told(self, known: PlaceSeconds) -> str:
        return ", ".join(f"{place} {seconds:.3g} s" for place, seconds in known.least.items()) or "nothing is known"

    def _run_on_device(self, args: Sequence[Any]) -> Any:
        count = len(args[0]) if args and isinstance(args[0], numpy.ndarray) and args[0].ndim else 0
        size = sum(arg.nbytes for arg in args if isinstance(arg, numpy.ndarray))
        step = count
        if self._split == rows and count:
            room = self._memory_bytes or _free_bytes(self._device)
            step = max(_LEAST_ROWS, min(count, int(count * room / (_PIECES_AT_ONCE * 3 * size + 1))))
        while True:
            try:
                return _run_pieces(self._on_device, args, device=self._device, count=count, step=step)
            except _DeviceFull:
                if self._split != rows or step <= _LEAST_ROWS:
                    raise
                step = max(_LEAST_ROWS, step // 2)


class _DeviceFull(Exception):
    """The device is out of memory."""


def offload(
    *, cuda: Callable[..., Any], split: str | None = None, device: str = "cuda", memory_bytes: int | None = None
) -> Callable[[Callable[..., Any]], OffloadedFunction]:
    """Give a function on NumPy arrays a counterpart on torch tensors, which is called where it is faster.

    `split=df.rows` says that rows do not depend on each other, so that data larger than the device's memory, or than
    `memory_bytes`, go through it in pieces. Where there is no such device the function itself is called.

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


def _is_there(device: str) -> bool:
    if device == "cpu":
        return True
    import torch

    return torch.cuda.is_available()


def _free_bytes(device: str) -> int:
    if device == "cpu":
        return 1 << 40
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def _run_pieces(function: Callable[..., Any], args: Sequence[Any], *, device: str, count: int, step: int) -> Any:
    """The counterpart's results as arrays, computed piece by piece; copies in, kernels and copies out of neighbouring
    pieces go on three streams."""
    import torch

    try:
        if step >= count:
            return _to_arrays(function(*_to_tensors(args, device, slice(None), count)))
        return _gather(_streamed(function, args, device, count, step), count)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise _DeviceFull(str(error).partition("\n")[0]) from error


def _streamed(
    function: Callable[..., Any], args: Sequence[Any], device: str, count: int, step: int
) -> Iterator[tuple[slice, Any]]:
    """Each piece's results, in order: a piece is handed over while the one before computes and the one before that
    travels back."""
    import torch

    pieces = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if device == "cpu":
        for piece in pieces:
            yield piece, _to_arrays(function(*_to_tensors(args, device, piece, count)))
        return
    streams: list[Any] = [torch.cuda.Stream(device) for _ in range(_PIECES_AT_ONCE)]  # type: ignore[no-untyped-call]
    under_way: list[tuple[slice, Any, Any]] = []
    for number, piece in enumerate(pieces):
        stream = streams[number % len(streams)]
        if len(under_way) == len(streams):
            before, found, used = under_way.pop(0)
            used.synchronize()
            yield before, _to_arrays(found)
        with torch.cuda.stream(stream):
            given = function(*_to_tensors(args, device, piece, count, pinned=True))
            back = [tensor.to("cpu", non_blocking=True) for tensor in _listed(given)]
        under_way.append((piece, back if isinstance(given, tuple) else back[0], stream))
    for piece, found, used in under_way:
        used.synchronize()
        yield piece, _to_arrays(found)


def _to_tensors(args: Sequence[Any], device: str, piece: slice, count: int, *, pinned: bool = False) -> list[Any]:
    """Arrays as tensors on the device, those with as many rows as the first cut to the piece."""
    import torch

    found = []
    for arg in args:
        if not isinstance(arg, numpy.ndarray):
            found.append(arg)
            continue
        part = arg[piece] if arg.ndim and len(arg) == count else arg
        tensor = torch.from_numpy(numpy.ascontiguousarray(part))
        found.append((tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned))
    return found


def _gather(pieces: Iterator[tuple[slice, Any]], count: int) -> Any:
    """Results of pieces, put together as they come."""
    whole: list[numpy.ndarray] = []
    several = False
    for piece, found in pieces:
        several = isinstance(found, tuple)
        parts = _listed(found)
        if not whole:
            whole = [numpy.empty((count, *part.shape[1:]), part.dtype) for part in parts]
        for target, part in zip(whole, parts, strict=True):
            target[piece] = part
    return tuple(whole) if several else whole[0]


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _to_arrays(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return tuple(_to_arrays(each) for each in found)
    return found.cpu().numpy()
