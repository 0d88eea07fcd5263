"""Monitors a Ray cluster's nodes and its head: one thread asks every second which nodes there are, and another tells
the nodes that the engine is there.

When the head dies, existing actors go on answering for a while, whoever asks for a new one waits, and about a minute
later Ray ends this process. So the head must be missed sooner than that, by a thread that may wait for an answer.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail.engines.ray.connection import installed
from dovetail.vocabulary import DovetailError

ASK_SECONDS = 1.0
# Whoever drains a node need not say until when it stays.
NOTICE_SECONDS = 600.0


class NodeMonitor:
    """What the head says of its nodes, and when it last said anything. `beat` is called every second, from a thread."""

    def __init__(self, ray: Any, *, beat: Callable[[], None]) -> None:
        self._ray, self._send_heartbeats = ray, beat
        self._address = ray.get_runtime_context().gcs_address
        self._told_at = time.monotonic()
        self._ran_seconds = self._answered_at = 0.0
        self._lost: dict[str, str] = {}
        #: The nodes that there are, as Ray gives them.
        self.nodes: list[dict[str, Any]] = []
        #: When each node that was given notice will be gone, in seconds since 1970, by Ray's number.
        self.draining: dict[str, float] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()
        threading.Thread(target=self._tell, daemon=True).start()

    def running_seconds(self) -> float:
        """For how long this process has run since this was made. While a process is stopped, or its machine sleeps,
        nobody can answer it, and that is nobody's silence."""
        return self._ran_seconds + min(time.monotonic() - self._told_at, 2 * ASK_SECONDS)

    def silent(self, seconds: float) -> bool:
        """Whether the head has not answered for this many seconds."""
        return self.running_seconds() - self._answered_at > seconds

    def check(self, seconds: float) -> None:
        """Raise `DovetailError` if the head has not answered for this many seconds."""
        if self.silent(seconds):
            raise DovetailError(
                f"the head of the Ray cluster at {self._address} must answer; it has not for {seconds:.0f} s. What was "
                f"saved is safe: start the cluster again and run the same command to go on."
            )

    def lost(self, number: str) -> str:
        """The reason why the node with this Ray number is gone; empty while it is there."""
        return self._lost.get(number, "")

    def close(self) -> None:
        """Stop both threads. May be called twice."""
        self._closed.set()

    def _tell(self) -> None:
        while not self._closed.wait(ASK_SECONDS):
            self._ran_seconds, self._told_at = self.running_seconds(), time.monotonic()
            self._send_heartbeats()

    def _ask(self) -> None:
        while not self._closed.wait(ASK_SECONDS):
            try:
                nodes = self._ray.nodes()
                draining = find_notices()
            except Exception:  # whatever it is, it is no answer: `check` says so when there was none
                continue
            self._answered_at = self.running_seconds()
            self.nodes, self.draining = nodes, draining
            for node in nodes:
                if not node["Alive"]:
                    said = node.get("DeathReasonMessage") or "it has left the cluster"
                    self._lost[node["NodeID"]] = said


def find_notices() -> dict[str, float]:
    """The nodes that Ray drains, and when each will be gone."""
    deadlines: dict[str, int] = installed()._private.state.state.get_draining_nodes()
    latest = time.time() + NOTICE_SECONDS
    return {node: deadline / 1000 if 0 < deadline / 1000 < latest else latest for node, deadline in deadlines.items()}
