"""The engine's side of a node: calls to the host there, and the workers it holds.

At most two calls are under way: one that waits for messages, one that carries some. A call that could not reach its
host is made again until the host counts as lost; messages are numbered, so a repeated call does no harm.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.engines.base import order_log
from dovetail.engines.worker_handle import WorkerHandle
from dovetail.vocabulary import dumps

# A host takes seconds to start: Ray brings the code, starts an interpreter, and this imports Dovetail.
START_SECONDS = 120.0
RETRY_SECONDS = 0.5


class HostLink:
    """A node's host, reached by Ray. `lost` is the reason why it is gone, empty while it is there. Silence is by the
    clock `now`."""

    def __init__(
        self,
        node: str,
        *,
        ray: Any,
        host: Any,
        logs: Path,
        silence_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node, self.lost, self.logs, self._now = node, "", logs, now
        self._ray, self._host, self._silence_seconds = ray, host, silence_seconds
        self._workers: dict[int, RemoteWorker] = {}
        self._hired = self._numbers = 0
        self._unsent: list[tuple[int, dict[str, Any]]] = []
        self._have, self._posted = 0, 0
        self._calls: dict[Any, Callable[[Any], None]] = {}
        self._answered_at, self._retry_at = now() + START_SECONDS - silence_seconds, 0.0
        self._answers, self._clock = False, 0.0
        self.wants_peers = False  # whether a feed there would borrow cores of other nodes, whose hosts it does not know
        self._pull()

    def start_worker(self, devices: tuple[str, ...]) -> "RemoteWorker":
        """Start a worker on devices of this node. Returns at once."""
        self._hired += 1
        number = self._hired
        worker = self._workers[number] = RemoteWorker(devices, link=self, number=number)
        self.post({"do": "start", "worker": number, "devices": list(devices)})
        return worker

    def post(self, message: dict[str, Any]) -> None:
        """Send the host a message, after all earlier ones. Returns at once."""
        self._numbers += 1
        self._unsent.append((self._numbers, message))
        self._post()

    def introduce(self, others: Mapping[str, "HostLink"]) -> None:
        """Make the hosts of other nodes known to this one."""
        self.wants_peers = False
        self._host.introduce.remote({node: link._host for node, link in others.items()})

    def attend(self, order: str, leader: "HostLink") -> None:
        """Have ranks of an order here meet with those of another node, at its host."""
        self._host.attend.remote(order, leader._host)

    def silence(self, since: float) -> float:
        """The seconds from `since` until the host last answered, by the host's clock."""
        return max(0.0, self._clock - since)

    def calls(self) -> list[Any]:
        """The calls under way, after those that failed were made again if it was time to."""
        if not self.lost and time.monotonic() > self._retry_at:
            self._pull()
            self._post()
        return list(self._calls)

    def take(self, call: Any) -> None:
        """Take the result of a call that was answered or has failed."""
        done = self._calls.pop(call, None)
        if done is None:  # another one that came with it has told that the host is gone
            return
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.ActorUnavailableError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        except self._ray.exceptions.RayError as error:
            self.mark_lost(_explained(error))
        else:
            self._answered_at, self._answers = self._now(), True
            try:
                done(answer)
            except (
                LookupError,
                TypeError,
                ValueError,
                RecursionError,
            ) as error:  # of no use, but no other node's fault
                self.mark_lost(f"what it sent cannot be read: {error!r}")

    def check_silence(self) -> None:
        """Mark the host as lost if it has not answered for too long."""
        silent = self._now() - self._answered_at
        if not self.lost and silent > self._silence_seconds:
            limit = self._silence_seconds if self._answers else START_SECONDS
            self.mark_lost(f"it has not answered for {limit:.0f} s")

    def mark_lost(self, reason: str) -> None:
        """Record that the host is gone, and its workers with it."""
        self.lost = reason
        self._calls.clear()
        for worker in self._workers.values():
            worker.mark_exited(f"node {self.node} is lost: {reason}")
        self._workers.clear()

    def close(self) -> None:
        """Kill the host; its workers end with it. May be called twice."""
        if not self.lost:
            self.mark_lost("the engine was closed")
            self._ray.kill(self._host)

    def keep_alive(self) -> None:
        """Tell the host that the engine is still there. May be called from any thread."""
        if not self.lost:
            self._host.keep_alive.remote()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for a call to be answered, and take the answers."""
        for call in answered(self._ray, self.calls(), seconds):
            self.take(call)
        self.check_silence()

    def _pull(self) -> None:
        if self._hear not in self._calls.values():
            self._calls[self._host.pull.remote(self._have)] = self._hear

    def _post(self) -> None:
        if not self.lost and self._unsent and self._confirm not in self._calls.values():
            self._posted = self._unsent[-1][0]
            self._calls[self._host.post.remote(dumps(self._unsent).encode())] = self._confirm

    def _confirm(self, answer: Any) -> None:
        self._unsent = [each for each in self._unsent if each[0] > self._posted]
        self._post()

    def _hear(self, answer: bytes) -> None:
        found = json.loads(answer)
        self._clock = found["clock"]
        for number, message in found["messages"]:
            if number <= self._have:
                continue
            self._have = number
            if "wants_peers" in message:
                self.wants_peers = True
                continue
            worker = self._workers[message["worker"]]
            worker.handle(message)
            if worker.is_gone:
                del self._workers[message["worker"]]
        self._pull()


class RemoteWorker(WorkerHandle):
    """A worker on another node. Its messages gather in `lines` until the engine takes them."""

    def __init__(self, devices: tuple[str, ...], *, link: HostLink, number: int) -> None:
        self.devices, self.link = devices, link
        self.order, self.doing, self.process = "", "starting", 0
        self.lines: list[dict[str, Any]] = []
        self.is_gone = False
        self._number, self._heard_clock = number, math.inf  # by its host's clock; it was not heard of yet
        self._reason = self._ending = self._log = self._doomed = ""
        self._order_log: Path | None = None

    @property
    def heard_at(self) -> float:  # type: ignore[override]
        """When the worker was last heard of, by this machine's monotonic clock; its host's silence does not count."""
        return time.monotonic() - self.link.silence(self._heard_clock)

    def excuse(self, seconds: float) -> None:
        """Nothing: its silence is by the clock of its host, which listens whatever the engine does."""

    def begin(self, order: str, message: dict[str, Any]) -> None:
        """Hand the worker an order, through its host."""
        assert not self.order, f"{self.devices} are busy with {self.order}"
        self.order, self.doing = order, "starting"
        self._order_log = order_log(self.link.logs, order, rank=(message["ranks"] or {"rank": 0})["rank"])
        self.link.post({"do": "begin", "worker": self._number, "order": order, "message": message})

    def send(self, message: dict[str, Any]) -> None:
        """Send the worker a message, through its host."""
        self.link.post({"do": "send", "worker": self._number, "message": message})

    def kill(self, why: str) -> None:
        """Have the host kill the worker; it reports how the worker ended."""
        self._doomed = self._doomed or why
        self.link.post({"do": "kill", "worker": self._number, "why": why})

    def exited(self, seconds: float) -> bool:
        """Wait up to `seconds` until the host reports that the worker exited, or is lost itself; whether it has."""
        until = time.monotonic() + seconds
        while not self.is_gone and (left := until - time.monotonic()) > 0:
            self.link.wait(left)
        return self.is_gone

    def reason(self) -> str:
        """How the worker ended, as a sentence for people."""
        return self._reason or f"worker on {', '.join(self.devices)} was killed: {self._doomed or 'it does not answer'}"

    def ending(self) -> str:
        """How the worker's process ended by its own doing, once it has exited."""
        return self._ending

    def log_tail(self) -> str:
        """The end of the worker's log, once it has exited."""
        return self._log

    def handle(self, message: dict[str, Any]) -> None:
        """Take up what its host reports of the worker."""
        self._heard_clock = message["at"]
        if "gone" in message:
            self.mark_exited(**message["gone"])
        elif "process" in message:
            self.process = message["process"]
        elif "printed" in message:
            self._write_log(**message["printed"])
        else:
            self.lines += message["lines"]
            self.doing = next((each["doing"] for each in reversed(self.lines) if "doing" in each), self.doing)

    def _write_log(self, start: int, text: str) -> None:
        """Put what an order has printed on a node with a disk of its own where 'dovetail logs' looks for it. A log that
        cannot be written is no reason not to train."""
        assert self._order_log is not None
        with contextlib.suppress(OSError):
            file = os.open(self._order_log, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, text.encode(errors="surrogateescape"), start)
            finally:
                os.close(file)

    def mark_exited(self, reason: str, *, ending: str = "", log: str = "") -> None:
        """Record that the worker is gone, with the reason and the end of its log."""
        self.is_gone, self._reason, self._ending, self._log = True, reason, ending, log


def answered(ray: Any, calls: list[Any], seconds: float) -> list[Any]:
    """The calls that have been answered; waits up to `seconds` for the first."""
    if not calls:
        return []
    ray.wait(calls, timeout=max(0.0, seconds))
    found: list[Any] = ray.wait(calls, num_returns=len(calls), timeout=0)[0]
    return found


def _explained(error: Exception) -> str:
    """What Ray says, less its advice: `cause` of an error in a host's own code, else the first lines."""
    cause = getattr(error, "cause", None)
    text = str(cause or error).strip()
    return " ".join(text.split())[:600]
