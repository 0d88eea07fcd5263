"""A function on a device's tensors, called with arrays of the host: whole, or piece by piece by rows.

Pieces pass on a few streams: one is on its way to the device while the one before is computed and the one before that
comes back. Threads fill the pinned memory that copies go through, and empty it: it is the host's copying, not the link,
that would take longest. torch is imported at the first call.
"""

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy

from dovetail.frame.device_link import is_cut_off
from dovetail.frame.device_sender import begin_sending
from dovetail.frame.once import once
from dovetail.frame.result_memory import ResultMemory
from dovetail.native.host_memory import host_memory_bytes
from dovetail.vocabulary import DovetailError

LEAST_ROWS = 1024
# Copies, kernels and copies back of neighbouring pieces overlap, with one more to smooth them; each has its arrays on
# the device at once.
_PIECES_AT_ONCE = 4
# A piece's arrays of the host: large enough that the link takes longer for them than Python to hand over two dozen
# kernels, small enough that the first and last, which overlap with nothing, are short.
_PIECE_BYTES = 192 << 20
# Of so many more pieces memory is being emptied at a time. To wait for each before the next takes longer than the
# copies themselves: with 16 threads 28 GB/s instead of 44, where the link carries 54.
_AHEAD = 4
# Pinned memory is taken from everybody: a piece is no larger than this part of the host's.
_PARTS_OF_HOST = 128
_MOST_COPY_THREADS, _MOST_SEND_THREADS, _COPIED_AT_ONCE = 16, 8, 24 << 20

TensorFunction = Callable[..., Any]
"""Takes tensors and numbers; gives a tensor or a tuple of them."""


class DeviceRefuses(Exception):
    """The device cannot do what it is asked; the host may."""


class DeviceFull(DeviceRefuses):
    """The device is out of memory."""


def has_device(device: str) -> bool:
    """Whether torch can compute on this device."""
    if device == "cpu":
        return True
    import torch

    return torch.cuda.is_available() and not is_cut_off()


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
    those do not fit, and `DeviceRefuses` for arrays of types that torch does not have."""
    first = len(args[0]) if args and isinstance(args[0], numpy.ndarray) and args[0].ndim else 0
    count = first if rows is None else rows
    step = count
    if split and count:
        size = sum(arg.nbytes for arg in args if isinstance(arg, numpy.ndarray))
        room = memory_bytes or _free_bytes(device)
        most = min(room / (3 * _PIECES_AT_ONCE), _PIECE_BYTES, host_memory_bytes() / _PARTS_OF_HOST)
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
        with torch.no_grad():
            if step >= count:
                return _to_arrays(function(*_to_tensors(args, device)))
            pieces = [slice(start, min(start + step, count)) for start in range(0, count, step)]
            if device == "cpu":
                found = ((piece, function(*_to_tensors(_cut(args, piece, count), device))) for piece in pieces)
                return _Results(count).gather(found, ahead=0)
            return _stream(function, args, device, count, pieces)
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)):  # of pinned memory
            raise
        torch.cuda.empty_cache()
        raise DeviceFull(str(error).partition("\n")[0]) from error


def _stream(function: TensorFunction, args: Sequence[Any], device: str, count: int, pieces: Sequence[slice]) -> Any:
    """All pieces, in order: handed over by a thread, put together by the caller as they come back."""
    import torch

    streams = _streams(device if ":" in device else f"{device}:{torch.cuda.current_device()}")
    # What no piece has a part of is sent once.
    args = [arg if _is_cut(arg, count) else _to_tensors([arg], device)[0] for arg in args]
    for each in streams:  # for what the caller's stream computes that the function uses
        each.wait_stream(torch.cuda.current_stream(each.device))
    back: queue.Queue[Any] = queue.Queue(maxsize=_PIECES_AT_ONCE)
    stopped = threading.Event()
    results = _Results(count)
    sending: deque[_Sent] = deque()

    def hand_over() -> None:
        there = computed = None
        with contextlib.suppress(_Stopped):
            try:
                torch.cuda.set_device(streams[0].device)
                for number, piece in enumerate(pieces):
                    for ahead in range(number + len(sending), min(number + len(streams), len(pieces))):
                        with torch.cuda.stream(streams[ahead % len(streams)]):
                            sending.append(([], []))
                            _begin_sending(_cut(args, pieces[ahead], count), device, *sending[-1])
                    stream = streams[number % len(streams)]
                    for there in sending[0][1]:
                        stream.wait_event(there.result())
                    if computed is not None:  # a function may keep what it makes at its first piece
                        stream.wait_event(computed)
                    with torch.cuda.stream(stream), torch.no_grad():
                        given = function(*sending.popleft()[0])
                        computed = _record()
                        found = results.receive(piece, given)
                        done, given = _record(), None
                    _put(back, (piece, found, done), stopped)
            except BaseException as error:  # it is the caller's
                there = None  # or it would keep, by what it was raised from, all that was sent
                _put(back, error, stopped)

    thread = threading.Thread(target=hand_over, name="frame pieces", daemon=True)
    thread.start()

    def come_back() -> Iterator[tuple[slice, Any]]:
        for _ in pieces:
            got = back.get()
            if isinstance(got, BaseException):
                try:
                    raise got
                finally:
                    del got  # whose traceback has this frame: a piece that did not fit would stay for the next attempt
            piece, found, done = got
            done.synchronize()
            yield piece, found

    try:
        return results.gather(come_back(), ahead=_AHEAD)
    finally:
        stopped.set()
        thread.join()
        # After an error pieces may still be on their way to and from memory that is given back.
        for _, copies in sending:
            wait(copies)
        torch.cuda.synchronize(device)
        sending.clear()


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
    return [arg[piece] if _is_cut(arg, count) else arg for arg in args]


def _is_cut(arg: Any, count: int) -> bool:
    return isinstance(arg, numpy.ndarray) and arg.ndim > 0 and len(arg) == count


def _record() -> Any:
    import torch

    found: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    found.record()
    return found


@once
def _streams(device: str) -> list[Any]:
    """The same for every call: torch keeps freed memory apart for each stream, so that new ones would take more."""
    import torch

    return [torch.cuda.Stream(device) for _ in range(_PIECES_AT_ONCE)]  # type: ignore[no-untyped-call]


_Sent = tuple[list[Any], list["Future[Any]"]]
"""Arguments with tensors of the device in the place of arrays, and what fills them: each gives an event."""


def _begin_sending(args: Sequence[Any], device: str, found: list[Any], copies: list[Any]) -> None:
    """Adds to both lists as it goes: what was begun is known where no more has room."""
    import torch

    for arg in args:
        tensor = _as_tensor(arg) if isinstance(arg, numpy.ndarray) else arg
        if isinstance(arg, numpy.ndarray) and (tensor is None or not tensor.is_pinned()):
            tensor = torch.empty(arg.shape, dtype=_torch_type(arg), device=device)
            copies += begin_sending(arg, tensor, _senders())
        elif isinstance(tensor, torch.Tensor):
            tensor = tensor.to(device, non_blocking=True)
        found.append(tensor)


def _to_tensors(args: Sequence[Any], device: str) -> list[Any]:
    import torch

    found = []
    for arg in args:
        if isinstance(arg, numpy.ndarray):
            tensor = _as_tensor(arg)
            found.append((torch.from_numpy(arg.copy()) if tensor is None else tensor).to(device))
        else:
            found.append(arg.to(device) if isinstance(arg, torch.Tensor) else arg)
    return found


def _as_tensor(array: numpy.ndarray) -> Any:
    """A tensor of the same memory; None where torch cannot have one."""
    import torch

    _torch_type(array)
    plain = array.flags.c_contiguous and array.flags.writeable and min(array.strides, default=1) > 0
    return torch.from_numpy(array) if plain else None


class _Results:
    """What pieces give, put together as they come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._several = False
        self._targets: list[Any] = []  # an array of so many rows, or a list of what does not have a piece's rows
        self._reached: list[Any] = []  # the same array as a tensor, where the device writes to it by itself

    def receive(self, piece: slice, given: Any) -> list[Any]:
        """On their way to the host by the current stream: to where they stay, or to pinned memory between."""
        tensors = self._open(piece, given, lend=_result_memory().lend)
        found = []
        for each, whole in zip(tensors, self._reached, strict=True):
            if whole is not None:
                found.append(whole[piece].copy_(each, non_blocking=True))
            else:  # of the host's own memory the next piece may be computed in the same
                found.append(each.clone() if each.device.type == "cpu" else each.to("cpu", non_blocking=True))
        return found

    def gather(self, parts: Iterator[tuple[slice, Any]], *, ahead: int) -> Any:
        """All of them: copied by threads while so many more are awaited, or each before the next one, which may be
        computed in the same memory."""
        import torch

        copying: deque[tuple[list[Future[None]], list[Any]]] = deque()  # with what is copied, so that it stays
        for piece, found in parts:
            tensors = self._open(piece, found, lend=_new_memory)
            copies = list[Future[None]]()
            for target, whole, tensor in zip(self._targets, self._reached, tensors, strict=True):
                if isinstance(target, list):
                    target.append(tensor.clone())
                elif whole is not None:
                    continue
                elif not ahead:
                    numpy.copyto(target[piece], tensor.numpy())
                else:
                    copies += _begin_copy(target[piece], tensor.numpy())
            copying.append((copies, tensors))
            while len(copying) > ahead:
                _wait(copying.popleft()[0])
        for copies, _ in copying:
            _wait(copies)
        whole_results = tuple(torch.cat(each).numpy() if isinstance(each, list) else each for each in self._targets)
        return whole_results if self._several else whole_results[0]

    def _open(self, piece: slice, given: Any, *, lend: "_Lend") -> list[Any]:
        """The first piece says what there is to have room for."""
        import torch

        tensors = list(given) if isinstance(given, tuple | list) else [given]
        rows = piece.stop - piece.start
        if self._targets:
            for target, each in zip(self._targets, tensors, strict=True):
                if not isinstance(target, list) and each.shape != (rows, *target.shape[1:]):
                    raise DovetailError(
                        f"a function that is split by rows must give as many for each piece as it was given, as it did "
                        f"for the first; of {rows:,} rows it made {tuple(each.shape)}. Offload it without split."
                    )
            return tensors
        self._several = isinstance(given, tuple | list)
        for each in tensors:
            target, is_reached = list[Any](), False
            if each.ndim and len(each) == rows:
                dtype = torch.empty(0, dtype=each.dtype).numpy().dtype
                target, is_reached = lend((self._count, *each.shape[1:]), dtype)
            self._targets.append(target)
            self._reached.append(torch.from_numpy(target) if is_reached else None)
        return tensors


_Lend = Callable[[tuple[int, ...], Any], tuple[Any, bool]]


def _new_memory(shape: tuple[int, ...], dtype: Any) -> tuple[numpy.ndarray, bool]:
    return numpy.empty(shape, dtype), False


@once
def _result_memory() -> ResultMemory:
    return ResultMemory()


def _torch_type(array: numpy.ndarray) -> Any:
    import torch

    try:
        return torch.from_numpy(numpy.empty(0, array.dtype)).dtype
    except (TypeError, ValueError) as error:
        raise DeviceRefuses(f"torch has no {array.dtype.str}") from error


def _begin_copy(target: numpy.ndarray, source: numpy.ndarray) -> "list[Future[None]]":
    """By several threads: one alone copies an eighth of what a link carries, and less into memory that is new."""
    if not target.ndim:
        return [_copiers().submit(numpy.copyto, target, source)]
    step = max(1, len(target) * _COPIED_AT_ONCE // max(1, target.nbytes))
    parts = [slice(start, start + step) for start in range(0, len(target), step)]
    return [_copiers().submit(numpy.copyto, target[part], source[part]) for part in parts]


def _wait(copies: "list[Future[None]]") -> None:
    for copy in copies:
        copy.result()


@once
def _copiers() -> ThreadPoolExecutor:
    threads = min(_MOST_COPY_THREADS, len(os.sched_getaffinity(0)))
    return ThreadPoolExecutor(threads, thread_name_prefix="frame copy")


@once
def _senders() -> ThreadPoolExecutor:
    """Fewer than there are cores: what hands over the kernels must not wait for a core."""
    threads = min(_MOST_SEND_THREADS, max(1, len(os.sched_getaffinity(0)) * 3 // 4))
    return ThreadPoolExecutor(threads, thread_name_prefix="frame send")


def _to_arrays(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return tuple(_to_arrays(each) for each in found)
    return found.cpu().numpy()


def _free_bytes(device: str) -> int:
    if device == "cpu":
        return 1 << 40
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept
