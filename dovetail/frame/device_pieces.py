"""A function on a device's tensors, called with arrays of the host: whole, or piece by piece by rows.

Pieces pass on three streams: one is on its way to the device while the one before is computed and the one before that
comes back. A thread of its own fills the pinned memory that copies go through, since it is the host's copying, not the
link, that would take longest. torch is imported at the first call.
"""

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy

LEAST_ROWS = 1024
# Copies, kernels and copies back of neighbouring pieces overlap; so each piece has its arrays on the device at once.
_PIECES_AT_ONCE = 3
# A piece's arrays of the host: large enough that the link takes longer for them than Python to hand over two dozen
# kernels, small enough that the first and last, which overlap with nothing, are short.
_PIECE_BYTES = 192 << 20
_COPY_THREADS = 16
_LEAST_COPIED = 1 << 20

TensorFunction = Callable[..., Any]
"""Takes tensors and numbers; gives a tensor or a tuple of them."""


class DeviceFull(Exception):
    """The device is out of memory."""


def has_device(device: str) -> bool:
    """Whether torch can compute on this device."""
    if device == "cpu":
        return True
    import torch

    return torch.cuda.is_available()


def run_in_pieces(
    function: TensorFunction,
    args: Sequence[Any],
    *,
    device: str,
    split: bool,
    rows: int | None = None,
    memory_bytes: int | None = None,
) -> Any:
    """The function's results as arrays, for arguments of which each array with so many `rows` (as the first, unless
    given) is cut where `split` says that rows do not depend on each other. What has not as many rows as its piece is
    put together piece by piece. A device without room for the pieces gets smaller ones; raises `DeviceFull` where even
    those do not fit."""
    first = len(args[0]) if args and isinstance(args[0], numpy.ndarray) and args[0].ndim else 0
    count = first if rows is None else rows
    step = count
    if split and count:
        size = sum(arg.nbytes for arg in args if isinstance(arg, numpy.ndarray))
        room = memory_bytes or _free_bytes(device)
        most = min(room / (3 * _PIECES_AT_ONCE), _PIECE_BYTES)
        step = max(LEAST_ROWS, min(count, int(count * most / (size + 1))))
    while True:
        try:
            return _run(function, args, device, count, step)
        except DeviceFull:
            if not split or step <= LEAST_ROWS:
                raise
            step = max(LEAST_ROWS, step // 2)


def _run(function: TensorFunction, args: Sequence[Any], device: str, count: int, step: int) -> Any:
    import torch

    try:
        if step >= count:
            return _to_arrays(function(*_to_tensors(args, device)))
        pieces = [slice(start, min(start + step, count)) for start in range(0, count, step)]
        if device == "cpu":
            return _gather(
                ((piece, function(*_to_tensors(_cut(args, piece, count), device))) for piece in pieces), count
            )
        return _stream(function, args, device, count, pieces)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise DeviceFull(str(error).partition("\n")[0]) from error


def _stream(function: TensorFunction, args: Sequence[Any], device: str, count: int, pieces: Sequence[slice]) -> Any:
    """All pieces, in order: handed over by a thread, put together by the caller as they come back."""
    import torch

    streams: list[Any] = [torch.cuda.Stream(device) for _ in range(_PIECES_AT_ONCE)]  # type: ignore[no-untyped-call]
    back: queue.Queue[Any] = queue.Queue(maxsize=_PIECES_AT_ONCE)
    stopped = threading.Event()

    def hand_over() -> None:
        with contextlib.suppress(_Stopped):
            try:
                for number, piece in enumerate(pieces):
                    with torch.cuda.stream(streams[number % len(streams)]), torch.no_grad():
                        given = function(*_to_tensors(_cut(args, piece, count), device, pinned=True))
                        found = [tensor.to("cpu", non_blocking=True) for tensor in _to_list(given)]
                        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                        done.record()
                    whole = tuple(found) if isinstance(given, tuple | list) else found[0]
                    _put(back, (piece, whole, done), stopped)
            except Exception as error:  # it is the caller's
                _put(back, error, stopped)

    thread = threading.Thread(target=hand_over, name="frame pieces", daemon=True)
    thread.start()

    def come_back() -> Iterator[tuple[slice, Any]]:
        for _ in pieces:
            got = back.get()
            if isinstance(got, Exception):
                raise got
            piece, found, done = got
            done.synchronize()
            yield piece, found

    try:
        return _gather(come_back(), count)
    finally:
        stopped.set()
        thread.join()


class _Stopped(Exception):
    """Nobody takes what a thread has to give."""


def _put(where: "queue.Queue[Any]", what: Any, stopped: threading.Event) -> None:
    while not stopped.is_set():
        with contextlib.suppress(queue.Full):
            where.put(what, timeout=0.1)
            return
    raise _Stopped


def _cut(args: Sequence[Any], piece: slice, count: int) -> list[Any]:
    """Arrays with as many rows as the first cut to the piece; others whole."""
    return [arg[piece] if isinstance(arg, numpy.ndarray) and arg.ndim and len(arg) == count else arg for arg in args]


def _to_tensors(args: Sequence[Any], device: str, *, pinned: bool = False) -> list[Any]:
    import torch

    found = []
    for arg in args:
        if not isinstance(arg, numpy.ndarray):
            found.append(arg)
            continue
        plain = arg.flags.c_contiguous and arg.flags.writeable and min(arg.strides, default=1) > 0
        tensor = torch.from_numpy(arg) if plain else None
        if pinned and (tensor is None or not tensor.is_pinned()):
            tensor = torch.empty(arg.shape, dtype=_torch_type(arg), pin_memory=True)
            _copy(tensor.numpy(), arg)
        elif tensor is None:
            tensor = torch.from_numpy(arg.copy())
        found.append(tensor.to(device, non_blocking=pinned))
    return found


def _gather(parts: Iterator[tuple[slice, Any]], count: int) -> Any:
    """Results of pieces, put together as they come."""
    import torch

    targets: list[Any] = []
    several = False
    for piece, found in parts:
        several = isinstance(found, tuple | list)
        tensors = _to_list(found)
        if not targets:
            in_rows = [len(each) == piece.stop - piece.start for each in tensors]
            # NumPy asks for huge pages, as torch does not: new memory is written twice as fast.
            targets = [numpy.empty((count, *each.shape[1:]), each.numpy().dtype) if its_rows else []
                       for each, its_rows in zip(tensors, in_rows, strict=True)]  # fmt: skip
        for target, tensor in zip(targets, tensors, strict=True):
            if isinstance(target, list):
                target.append(tensor.clone())
            else:
                _copy(target[piece], tensor.numpy())
    whole = tuple(torch.cat(each).numpy() if isinstance(each, list) else each for each in targets)
    return whole if several else whole[0]


def _torch_type(array: numpy.ndarray) -> Any:
    import torch

    return torch.from_numpy(numpy.empty(0, array.dtype)).dtype


def _copy(target: numpy.ndarray, source: numpy.ndarray) -> None:
    """On several cores: one alone copies an eighth of what a link carries, and less into memory that is new."""
    threads = min(_COPY_THREADS, len(os.sched_getaffinity(0)), target.nbytes // _LEAST_COPIED)
    if threads < 2 or not target.ndim:
        numpy.copyto(target, source)
        return
    step = -(-len(target) // threads)
    parts = [slice(start, start + step) for start in range(0, len(target), step)]
    list(_copiers().map(lambda part: numpy.copyto(target[part], source[part]), parts))


@functools.cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2 * _COPY_THREADS, thread_name_prefix="frame copy")


def _to_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _to_arrays(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return tuple(_to_arrays(each) for each in found)
    return found.cpu().numpy()


def _free_bytes(device: str) -> int:
    if device == "cpu":
        return 1 << 40
    import torch

    return int(torch.cuda.mem_get_info(device)[0])
