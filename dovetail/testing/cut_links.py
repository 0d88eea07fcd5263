"""Links that are cut between processes of this user on this machine, without privileges: the connections that they hold
are taken from outside and closed, or made to lose all that comes, as when a cable is pulled. Linux alone can do that.
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import psutil

_PIDFD_GETFD = 438
_SO_ATTACH_FILTER = 26
# A filter of one instruction, "keep 0 bytes": whatever comes is dropped before anybody sees it.
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))


def cut_links(process: int, other: int, *, silently: bool = False) -> int:
    """Cut all TCP connections between two processes that this one has started, or whose like it may trace: how many
    there were. Both find them closed; or `silently`, neither hears anything of the other any more."""
    cut = 0
    for end, far in ((process, other), (other, process)):
        for line in _lines(end, far):
            with line, contextlib.suppress(OSError):  # its owner has closed it meanwhile
                if silently:
                    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(_DROP_ALL))
                    line.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
                else:
                    line.shutdown(socket.SHUT_RDWR)
                cut += end == process
    return cut


def _lines(process: int, other: int) -> Iterator[socket.socket]:
    """The connections that a process has with another, which keeps them."""
    far = {(each.raddr, each.laddr) for each in _connections(other)}
    for each in _connections(process):
        if (each.laddr, each.raddr) in far:
            with contextlib.suppress(OSError):
                yield socket.socket(fileno=_take(process, each.fd))


def _connections(process: int) -> list[Any]:
    with contextlib.suppress(psutil.Error):
        return [each for each in psutil.Process(process).net_connections("tcp") if each.raddr]
    return []


def _take(process: int, descriptor: int) -> int:
    """A descriptor of our own for what another process has under one of its."""
    handle = os.pidfd_open(process)
    try:
        found = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, handle, descriptor, 0)
        if found < 0:
            raise OSError(ctypes.get_errno(), f"descriptor {descriptor} of process {process} must be ours to take")
        return int(found)
    finally:
        os.close(handle)
