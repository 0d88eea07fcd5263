"""Where ranks on several nodes meet: a store of torch's that lies behind a socket of this machine, and a look at
whether they can reach one another at all.

What ranks tell each other to find one another goes through whoever serves the socket, who is asked by nobody but this
user's processes. What they compute goes from process to process by TCP, as torch has it. Knows sockets and names of
nodes; knows nothing of how the other side is reached.
"""

import base64
import contextlib
import datetime
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import psutil
from torch import distributed

from dovetail.vocabulary import TechniqueRefused

SCHEME = "meeting:"
"""How the address of such a store begins; then come the socket, `#` and the name of the meeting."""
# A node that can be reached answers in much less; who waits for it is told within a minute.
REACH_SECONDS = 20.0
# So long nothing need come over a link, of what was sent or asked for, before it counts as lost: less than the 30 s
# after which a gang in which nobody computes counts as stalled, so that the link is named and no rank is killed for it.
LOST_SECONDS = 20.0


class MeetingStore(distributed.Store):  # type: ignore[name-defined, misc]
    """What the ranks of one order tell each other, by key. `url` is `meeting:SOCKET#NAME`."""

    def __init__(self, url: str, *, timeout: datetime.timedelta) -> None:
        super().__init__()
        self._path, _, self._meeting = url.removeprefix(SCHEME).rpartition("#")
        self._timeout = timeout

    @property
    def timeout(self) -> datetime.timedelta:
        """How long to wait for what another is to say."""
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Wait at most this long for a key from now on."""
        self._timeout = timeout

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key, for all ranks."""
        self._ask("set", key, value if isinstance(value, bytes) else str(value).encode())

    def get(self, key: str) -> bytes:
        """Wait until some rank has set this key, and give its value."""
        return self._wait(key, self._timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that all ranks share, and give its new value."""
        found = self._ask("add", key, str(amount).encode())
        assert found is not None
        return int(found)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these keys have been set."""
        return all(self._ask("get", key) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until all of these keys have been set."""
        for key in keys:
            self._wait(key, timeout or self._timeout)

    def _wait(self, key: str, timeout: datetime.timedelta) -> bytes:
        until = time.monotonic() + timeout.total_seconds()
        while (found := self._ask("wait", key)) is None:
            if time.monotonic() > until:
                raise distributed.DistStoreError(f"nobody has said {key!r} within {timeout.total_seconds():.0f} s.")
        return found

    def _ask(self, word: str, key: str, value: bytes = b"") -> bytes | None:
        """One question and its answer; with `wait` it comes after a moment at the latest, there or not."""
        said = {"meeting": self._meeting, "do": word, "key": key, "value": base64.b64encode(value).decode()}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel, channel.makefile("rw") as file:
                channel.connect(self._path)
                file.write(json.dumps(said) + "\n")
                file.flush()
                answer = json.loads(file.readline() or '{"error": "it was closed"}')
        except OSError as error:
            raise distributed.DistStoreError(f"the meeting of {self._meeting} is gone: {error}") from error
        if "error" in answer:
            raise distributed.DistStoreError(f"the meeting of {self._meeting} is over: {answer['error']}")
        return None if answer["value"] is None else base64.b64decode(answer["value"])


def refuse_unreachable(store: MeetingStore, *, rank: int, size: int, node: str, address: str) -> None:
    """Raise `TechniqueRefused`, on all ranks, where one cannot reach a rank of another node by TCP, and both are alive:
    a `node` that others reach at `address` looks from here. Called by all ranks; waits for one that has ended, until
    whoever watches ranks ends this one too."""
    with socket.create_server((address, 0), backlog=size) as listener:
        place = {"address": address, "port": listener.getsockname()[1], "node": node}
        store.set(f"reach/{rank}", json.dumps(place))
        places = (json.loads(store.get(f"reach/{other}")) for other in range(size))
        troubles = (_trouble_reaching(there, node=node) for there in places if there["node"] != node)
        store.set(f"looked/{rank}", next(filter(None, troubles), ""))
        found = [store.get(f"looked/{other}").decode() for other in range(size)]  # nobody closes before all have looked
        if any(found):
            # A rank that has ended cannot be reached either. What comes after the look is said by the living alone.
            store.set(f"alive/{rank}", "1")
            store.wait([f"alive/{other}" for other in range(size)])
            raise TechniqueRefused(found[rank] or next(filter(None, found)))


def notice_lost_links() -> None:
    """Have this process find out within a minute that nothing comes from a node any more which does not say so, as
    when its cable is pulled: a rank may wait for another as long as that works, and waits on a line that is dead as
    well. Once ranks have met; of all its TCP connections, for torch does not say which are its own."""
    for each in psutil.Process().net_connections("tcp"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(LOST_SECONDS / 3))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(LOST_SECONDS / 6))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LOST_SECONDS * 1000))


def _trouble_reaching(there: dict[str, Any], *, node: str) -> str:
    try:
        socket.create_connection((there["address"], there["port"]), timeout=REACH_SECONDS).close()
    except OSError as error:
        return (
            f"ranks on several nodes must reach one another by TCP; from node {node} to node {there['node']}, at "
            f"{there['address']} port {there['port']}: {error}. Open the ports between the nodes (a firewall?), or "
            f"leave techniques over several nodes out (--techniques)."
        )
    return ""
