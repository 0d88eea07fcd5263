"""Values between the processes of a feed: messages over a socket, large buffers through shared memory.

Tensors and arrays are not copied into a message: their bytes are written to memory that both processes can map, and
what arrives are tensors and arrays over that memory. It has no name, so nothing is left behind however a process ends,
and it is given back when the last of what lies in it is dropped. Where the system gives no such memory, the bytes go
through the socket. Knows values and sockets; knows nothing of stages.
"""

import array
import contextlib
import io
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy
import torch

# To map memory takes as long as to copy this much.
_INLINE_BYTES = 32 << 10
_ALIGNED = 64
_HEADER = struct.Struct("!QII")  # bytes of the message, buffers, files
_SIZE = struct.Struct("!Q")
_MOST_BUFFERS_AT_ONCE = 512


class _BufferPickler(pickle.Pickler):
    """Puts the bytes of tensors aside, as pickle does by itself with those of arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_plain(value):
            # As it lies in memory: kernels are chosen by that, for pictures with channels last say.
            order = tuple(sorted(range(value.dim()), key=value.stride, reverse=True))
            laid = value.detach().permute(order)
            if not laid.is_contiguous():
                order, laid = tuple(range(value.dim())), value.detach().contiguous()
            return _make_tensor, (laid.numpy().reshape(-1), tuple(laid.shape), value.dtype, order)
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    # NumPy has no bfloat16 and the like: those go as bytes.
    return plain and not tensor.is_quantized and tensor.dtype in _NUMPY_TYPES and not tensor.is_conj()


_NUMPY_TYPES = {
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bool,
}


def _make_tensor(
    flat: "numpy.typing.NDArray[Any]", shape: tuple[int, ...], dtype: torch.dtype, order: tuple[int, ...]
) -> torch.Tensor:
    laid = torch.from_numpy(flat if flat.flags.writeable else flat.copy()).view(dtype).reshape(shape)
    return laid.permute(sorted(range(len(order)), key=order.__getitem__))


def encode(value: Any) -> tuple[bytes, list[Any]]:
    """A value as a message and the buffers beside it.

    >>> message, buffers = encode({"x": torch.ones(3)})
    >>> decode(message, buffers)
    {'x': tensor([1., 1., 1.])}
    """
    found: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _BufferPickler(stream, protocol=5, buffer_callback=found.append).dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in found]


def decode(message: Any, buffers: Sequence[Any]) -> Any:
    """The value of which `encode` made a message; its tensors lie in the buffers, where those may be written to."""
    return pickle.loads(message, buffers=buffers)


class Channel:
    """One end of a connection between two processes of a feed. Sends and receives messages of plain data with values in
    them; each side is used by one thread at a time.

    >>> ours, theirs = Channel.pair()
    >>> with ours, theirs:
    ...     ours.send(("items", torch.arange(3)))
    ...     theirs.receive()
    ('items', tensor([0, 1, 2]))
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.without_memory = ""
        """Why the last values went through the socket and not through shared memory."""

    @classmethod
    def pair(cls) -> "tuple[Channel, Channel]":
        """Both ends of a new connection."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self.socket.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Raise `TimeoutError` where the other side says nothing for so long."""
        self.socket.settimeout(seconds)

    def send(self, value: Any) -> None:
        """Send a value. Raises `OSError` where the other side is gone."""
        message, buffers = encode(value)
        self.send_encoded(message, buffers)

    def send_encoded(self, message: bytes, buffers: Sequence[Any]) -> None:
        """Send a message and its buffers as `encode` gave them."""
        sizes = [len(memoryview(buffer)) for buffer in buffers]
        descriptor = self._memory_of(buffers) if sum(sizes) > _INLINE_BYTES else None
        table = b"".join(map(_SIZE.pack, sizes))
        header = _HEADER.pack(len(message), len(sizes), descriptor is not None)
        try:
            self._send_header(header, descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self.socket.sendall(table + message)
        if descriptor is None:
            for buffer in buffers:
                self.socket.sendall(buffer)

    def receive(self) -> Any:
        """The next value. Raises `EOFError` where the other side is gone, and `TimeoutError`."""
        return decode(*self.receive_encoded())

    def receive_encoded(self) -> tuple[Any, list[Any]]:
        """The next value as `encode` gave it."""
        header, descriptors = self._receive_header()
        length, count, in_memory = _HEADER.unpack(header)
        table = self._receive(count * _SIZE.size)
        sizes = [_SIZE.unpack_from(table, place * _SIZE.size)[0] for place in range(count)]
        message = self._receive(length)
        if not in_memory:
            return message, [self._receive(size) for size in sizes]
        (descriptor,) = descriptors
        try:
            memory = memoryview(mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        finally:
            os.close(descriptor)
        buffers, start = [], 0
        for size in sizes:
            buffers.append(memory[start : start + size])
            start += _align(size)
        return message, buffers

    def close(self) -> None:
        """Close this end. May be called twice."""
        self.socket.close()

    def shut(self) -> None:
        """End the connection, so that whoever waits on either side is told."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _memory_of(self, buffers: Sequence[Any]) -> int | None:
        """Unnamed memory with these buffers in it, or None where there is none to be had."""
        descriptor = None
        try:
            descriptor = os.memfd_create("dovetail-feed", os.MFD_CLOEXEC)
            _write(descriptor, buffers)
        except (OSError, AttributeError) as error:
            if descriptor is not None:
                os.close(descriptor)
            self.without_memory = str(error)
            return None
        return descriptor

    def _send_header(self, header: bytes, descriptor: int | None) -> None:
        if descriptor is None:
            self.socket.sendall(header)
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        sent = self.socket.sendmsg([header], rights)
        if sent < len(header):
            self.socket.sendall(header[sent:])

    def _receive_header(self) -> tuple[bytes, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.socket, _HEADER.size, 1)
        if not data:
            raise EOFError
        rest = self._receive(_HEADER.size - len(data)) if len(data) < _HEADER.size else b""
        return bytes(data) + bytes(rest), descriptors

    def _receive(self, size: int) -> bytearray:
        found = bytearray(size)
        view = memoryview(found)
        while len(view):
            count = self.socket.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return found


def _align(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _write(descriptor: int, buffers: Sequence[Any]) -> None:
    """Write buffers one behind another, each at an aligned place. The kernel copies, so no page is cleared first."""
    padding, parts = bytes(_ALIGNED), []
    for buffer in buffers:
        view = memoryview(buffer)
        parts += [view, memoryview(padding)[: _align(len(view)) - len(view)]]
    place = 0
    parts = [part for part in parts if len(part)]
    while parts:
        written = os.pwritev(descriptor, parts[:_MOST_BUFFERS_AT_ONCE], place)
        place += written
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts and written:
            parts[0] = parts[0][written:]
