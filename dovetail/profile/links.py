"""How fast bytes move between a host and its devices, and between two processes of a host.

The second process is a bare interpreter of its own at the other end of a socket, as a rank of a placement would
be, started anew rather than forked: a forked copy of a process that uses CUDA is broken. Knows one node.
"""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import torch

from dovetail.profile.devices import median_seconds
from dovetail.vocabulary import Kind, Link

_BUDGET_SECONDS = 0.2
_TRANSFER_BYTES = 64 << 20
_MESSAGE_BYTES = 16 << 20
_PATIENCE_SECONDS = 30.0
# Answers one byte to every message, whose length comes first. It ends when the other end is closed.
_CHILD = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
room = memoryview(bytearray(1 << 20))
while head := end.recv(8, socket.MSG_WAITALL):
    left = int.from_bytes(head, "little")
    while left:
        left -= end.recv_into(room, min(left, len(room))) or sys.exit(1)
    end.sendall(b"!")
"""


def measure_links(kind: Kind, *, device: torch.device) -> tuple[Link, ...]:
    """The links of one node: between processes, and on CUDA between the host's pinned memory and the device.

    >>> [(link.source, link.target) for link in measure_links(Kind(name="cpu", processor="cpu"),
    ...                                                       device=torch.device("cpu"))]
    [('process', 'process')]
    """
    if kind.processor != device.type:
        raise ValueError(f"device must be of the kind's processor {kind.processor!r}, got {str(device)!r}.")
    copies = _device_links(kind, device) if device.type == "cuda" else ()
    return (*copies, _process_link())


def _device_links(kind: Kind, device: torch.device) -> tuple[Link, ...]:
    small, large = _ends(1, device), _ends(_TRANSFER_BYTES, device)

    def link(source: str, target: str, *, to_device: bool) -> Link:
        latency = _copy_seconds(*small, device, to_device=to_device)
        seconds = _copy_seconds(*large, device, to_device=to_device)
        rate = _TRANSFER_BYTES / seconds
        return Link(source=source, target=target, bytes_per_second=rate, latency_seconds=latency)

    return link("host", kind.name, to_device=True), link(kind.name, "host", to_device=False)


def _ends(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.ones(size, dtype=torch.uint8).pin_memory()
    return host, torch.empty(size, dtype=torch.uint8, device=device)


def _copy_seconds(host: torch.Tensor, other: torch.Tensor, device: torch.device, *, to_device: bool) -> float:
    source, target = (host, other) if to_device else (other, host)
    return median_seconds(
        lambda: target.copy_(source, non_blocking=True), device=device, budget_seconds=_BUDGET_SECONDS
    )


def _process_link() -> Link:
    with _other_process() as end:
        latency = _exchange_seconds(end, 1) / 2  # there and back
        whole = _exchange_seconds(end, _MESSAGE_BYTES)
    rate = _MESSAGE_BYTES / max(whole - 2 * latency, 1e-9)
    return Link(source="process", target="process", bytes_per_second=rate, latency_seconds=latency)


@contextlib.contextmanager
def _other_process() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            # -I -S: neither the user's paths nor installed packages; it starts in milliseconds.
            command = [sys.executable, "-I", "-S", "-c", _CHILD, str(theirs.fileno())]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        ours.settimeout(_PATIENCE_SECONDS)
        try:
            yield ours
        finally:
            ours.close()
            _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _exchange_seconds(end: socket.socket, size: int) -> float:
    message = bytes(size)

    def exchange() -> None:
        end.sendall(size.to_bytes(8, "little"))
        end.sendall(message)
        if end.recv(1) != b"!":
            raise ConnectionError("the other process must answer every message; it ended instead.")

    return median_seconds(exchange, device=torch.device("cpu"), budget_seconds=_BUDGET_SECONDS)
