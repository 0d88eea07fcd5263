"""Cores of other nodes for the feeds of this node's workers: a socket at which workers ask, and threads that carry
their messages to the hosts of other nodes and back, by calls of Ray.

A worker's own process knows nothing of Ray: its feed finds behind the socket what it would find behind that of a
process here (`feeds/remote_cores`). Messages pass as bytes; nothing is unpickled on the way. Hosts of other nodes are
made known by the engine, which is asked for them when a feed wants a core for the first time.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.engines.ray.core_lending import as_passed

if TYPE_CHECKING:
    from dovetail.feeds.transport import Channel

GROUP = "feeds"
"""The calls of feeds have threads of their own in a host: they wait for items, and orders must not wait for them."""
# The longest name that a socket may have.
_LONGEST_NAME = 107
# A host that does not say so soon how many cores it has idle is not asked for one.
_ASK_SECONDS = 5.0


class CoreBorrower:
    """Serves a node's workers at the socket `address`, which is empty where none could be made. `wish` is called where
    hosts of other nodes are wanted; `code` is where this node's copy of the shipped code lies."""

    def __init__(self, folder: Path, *, code: Path, wish: Callable[[], None]) -> None:
        self._code, self._wish = str(code), wish
        self._hosts: dict[str, Any] = {}
        self.address = str(folder / "cores")
        if len(os.fsencode(self.address)) > _LONGEST_NAME:
            self.address = ""
            return
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen()
        threading.Thread(target=self._accept, name="core borrower", daemon=True).start()

    def introduce(self, hosts: Mapping[str, Any]) -> None:
        """Know these hosts of other nodes, by the names of their nodes, and no others."""
        self._hosts = dict(hosts)

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        from dovetail.feeds.transport import Channel  # imports torch, for which a host has no other use

        with contextlib.suppress(OSError, EOFError), Channel(connection) as channel:
            while True:
                word, *rest = channel.receive()
                if not self._hosts:
                    self._wish()
                if word == "idle":
                    channel.send(sum(self._idle().values()))
                elif word == "echo":
                    channel.send_encoded(*self._echo(*rest))
                else:
                    self._borrow(channel, *rest)
                    return

    def _idle(self) -> dict[str, int]:
        """The idle cores of each node; a host that does not answer is asked for anew."""
        import ray

        calls = {node: _call(host.idle_cores) for node, host in self._hosts.items()}
        found = {}
        for node, call in calls.items():
            try:
                found[node] = int(ray.get(call, timeout=_ASK_SECONDS))
            except ray.exceptions.GetTimeoutError:
                continue  # it is starting
            except ray.exceptions.RayError:
                self._forget(node)
        return found

    def _forget(self, node: str) -> None:
        self._hosts.pop(node, None)
        self._wish()

    def _echo(self, size: int) -> tuple[bytes, list[Any]]:
        import ray

        idle = self._idle()
        if not any(idle.values()):
            raise EOFError
        host = self._hosts[max(idle, key=lambda node: idle[node])]
        try:
            found: tuple[bytes, list[Any]] = ray.get(_call(host.echo, size))
        except ray.exceptions.RayError as error:
            raise EOFError from error
        return found

    def _borrow(self, channel: "Channel", path: list[str], pickled: bytes) -> None:
        import ray

        idle, why = self._idle(), ""
        # Those with the most first, so that no node's link has more of them than it must.
        for node in sorted((node for node, count in idle.items() if count), key=lambda node: -idle[node]):
            host = self._hosts[node]
            try:
                number, why = ray.get(_call(host.lend_core, path, self._code, pickled))
                if number:
                    channel.send((True, ""))
                    _Passage(channel, host, number).carry()
                    return
            except ray.exceptions.RayError:
                self._forget(node)
        channel.send((False, why))


class _Passage:
    """Between a feed here and a process of its on another node, until one of them ends."""

    def __init__(self, channel: "Channel", host: Any, number: int) -> None:
        self._channel, self._host, self._number = channel, host, number

    def carry(self) -> None:
        """Carry messages both ways; returns when one side is gone."""
        back = threading.Thread(target=self._carry_back, daemon=True)
        back.start()
        import ray

        with contextlib.suppress(OSError, EOFError, ray.exceptions.RayError):
            while True:
                message, buffers = as_passed(*self._channel.receive_encoded())
                # One after another: calls with threads of their own may overtake one another.
                if not ray.get(_call(self._host.send_to_core, self._number, message, buffers)):
                    break
        self._channel.shut()
        with contextlib.suppress(ray.exceptions.RayError):
            _call(self._host.release_core, self._number)
        back.join()

    def _carry_back(self) -> None:
        import ray

        with contextlib.suppress(OSError, EOFError, ray.exceptions.RayError):
            call = _call(self._host.receive_from_core, self._number)
            while (found := ray.get(call)) is not None:
                # The next one may come while this one is passed on.
                call = _call(self._host.receive_from_core, self._number)
                self._channel.send_encoded(*found)
        self._channel.shut()


def _call(method: Any, *given: Any) -> Any:
    return method.options(concurrency_group=GROUP).remote(*given)
