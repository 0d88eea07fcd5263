"""The engine `local`: worker processes on this machine, each bound to its devices and reused for their orders.

A worker costs seconds to start (it imports torch), so it stays. An order goes to the worker of exactly its devices:
thread counts are settled when a process starts, so one that had 1 core cannot serve 2. An order whose technique takes
one process a device goes to the workers of its devices one by one, each a rank. A worker that dies, falls silent, or
loses its socket is lost with its reason and the tail of its log, and with it the order and the other ranks; the next
order starts new ones.
"""

import contextlib
import dataclasses
import math
import os
import selectors
import tempfile
import time
from pathlib import Path
from typing import Any

from dovetail.engines.base import Engine, Order
from dovetail.engines.processes import WorkerProcess, threads_of
from dovetail.vocabulary import RANKED, Cluster, DovetailError, Event, from_json, to_json

WAIT_SECONDS = 0.5
# Once one rank is through with an order, however that ended, the others have so long to be through as well.
PARTING_SECONDS = 5.0

# After one of these a task has nothing more to report of its order.
_ENDS = ("finished", "waiting", "stopped", "failed", "lost", "fingerprinted", "measured", "rejected")


@dataclasses.dataclass(kw_only=True)
class _Running:
    """An order under way: its workers, in the order of ranks, and what has come of it."""

    order: Order
    workers: list[WorkerProcess]
    meeting: "tempfile.TemporaryDirectory[str] | None" = None  # where its ranks meet, if there are several
    ended: set[str] = dataclasses.field(default_factory=set)
    through: list[WorkerProcess] = dataclasses.field(default_factory=list)
    hearsay: str = ""  # what ranks say that found another one gone; who is gone knows better
    due: float = math.inf

    def name(self, worker: WorkerProcess) -> str:
        """Which of several ranks a worker is."""
        return f"rank {self.workers.index(worker)} of {len(self.workers)} on {', '.join(worker.devices)}"

    def close(self) -> None:
        """Remove the place where its ranks met."""
        if self.meeting is not None:
            self.meeting.cleanup()


class LocalEngine(Engine):
    """Placements in worker processes of this machine.

    `home` is the store's directory: logs go there, pickled programs come from there. A worker that sends no
    heartbeat for `silence_seconds` is killed and its order lost.
    """

    def __init__(self, cluster: Cluster, *, home: Path, silence_seconds: float = 30.0) -> None:
        if os.environ.get("DOVETAIL_WORKER"):
            raise DovetailError(
                "a program's file must not run a workload when it is imported; this one does, inside a worker. "
                "Put the call to dt.run under: if __name__ == '__main__':"
            )
        self._cluster, self._home, self._silence_seconds = cluster, home.resolve(), silence_seconds
        self._selector = selectors.DefaultSelector()
        self._workers: dict[tuple[str, ...], WorkerProcess] = {}
        self._running: dict[str, _Running] = {}
        self._pending: list[Event] = []
        self._given: list[Event] = []
        (self._home / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, order: Order) -> None:
        """Hand the order to its devices' worker, or workers, starting them if need be."""
        ranked = order.technique in RANKED
        shares = [(device,) for device in order.devices] if ranked else [order.devices]
        workers = [self._worker(devices) for devices in shares]
        running = self._running[order.name] = _Running(order=order, workers=workers)
        if ranked:
            # A place of their own for every attempt: one that a killed group has used rarely lets the next one in.
            running.meeting = tempfile.TemporaryDirectory(prefix="dovetail-", ignore_cleanup_errors=True)
        kind = self._cluster.kind(self._cluster.device(order.devices[0]).kind)
        for rank, worker in enumerate(workers):
            place = running.meeting and {
                "rank": rank,
                "size": len(workers),
                "rendezvous": f"file://{running.meeting.name}/meeting",
            }
            message = {
                "do": "order",
                "order": to_json(order),
                "kind": to_json(kind),
                "threads": threads_of(worker.devices, self._cluster),
                "home": str(self._home),
                "ranks": place,
            }
            worker.begin(order.name, message)

    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """Through the socket, to rank 0, whom the others follow; without saving, by killing the processes."""
        running = self._running.get(name)
        if running is None:
            return
        if save:
            running.workers[0].send({"do": "stop", "name": name, "reason": reason})
            return
        for worker in running.workers:
            worker.kill(reason)

    def wait(self) -> list[Event]:
        """Events from all workers, at most half a second away."""
        self._acknowledge()
        for key, _ in self._selector.select(0 if self._pending else WAIT_SECONDS):
            worker: WorkerProcess = key.data
            if self._workers.get(worker.devices) is worker:  # a rank that is lost takes the others along
                self._receive(worker)
        now = time.monotonic()
        for worker in list(self._workers.values()):
            silent = now - worker.heard_at
            if silent > self._silence_seconds:
                worker.kill(f"no heartbeat for {silent:.0f} s, the limit is {self._silence_seconds:.0f} s")
                self._lose(worker)
        for running in list(self._running.values()):
            if now > running.due:
                late = [worker for worker in running.workers if worker not in running.through]
                reason = f"{running.name(late[0])} did not end with the others; it was at: {late[0].doing}"
                self._finish(running, reason=running.hearsay or reason, log=late[0].last_words())
        self._given, self._pending = self._pending, []
        return self._given

    def now(self) -> float:
        """The wall clock."""
        return time.time()

    def close(self) -> None:
        """End all workers, the busy ones by force."""
        for worker in self._workers.values():
            if worker.order:
                worker.kill("the engine was closed")
            else:
                worker.send({"do": "exit"})
        for worker in list(self._workers.values()):
            if not worker.ended(5):
                worker.kill("it did not exit")
                worker.process.wait()
            self._forget(worker)
        for running in self._running.values():
            running.close()
        self._running.clear()
        self._selector.close()

    def processes(self) -> dict[str, int]:
        """The process numbers of live workers by device, for tests and fault injection."""
        return {",".join(devices): worker.process.pid for devices, worker in self._workers.items()}

    def _acknowledge(self) -> None:
        saved = {event.task: event.data["step"] for event in self._given if event.kind == "saved"}
        for running in self._running.values() if saved else ():
            for member in running.order.members:
                if member.task.identity in saved:
                    step = saved[member.task.identity]
                    running.workers[0].send({"do": "acknowledge", "task": member.task.identity, "step": step})

    def _worker(self, devices: tuple[str, ...]) -> WorkerProcess:
        worker = self._workers.pop(devices, None)
        if worker is None:
            self._make_room()
            log = self._home / "logs" / f"worker-{'-'.join(devices).replace(':', '-')}.log"
            worker = WorkerProcess(devices, cluster=self._cluster, log=log)
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        self._workers[devices] = worker  # last in the dict is the one used last
        return worker

    def _make_room(self) -> None:
        """Idle workers take memory: of those that were not used for longest, end what is beyond two a device."""
        idle = [worker for worker in self._workers.values() if not worker.order]
        for worker in idle[: max(0, len(self._workers) + 1 - 2 * len(self._cluster.devices))]:
            worker.send({"do": "exit"})
            self._forget(worker)

    def _receive(self, worker: WorkerProcess) -> None:
        messages = worker.receive()
        if messages is None:
            self._lose(worker)
            return
        for message in messages:
            # An order that another rank has ended is gone by now.
            if (running := self._running.get(worker.order)) is None:
                continue
            if "event" in message:
                self._note(running, worker, from_json(Event, message["event"]))
            elif "released" in message:
                self._let_go(running, worker)

    def _note(self, running: _Running, worker: WorkerProcess, event: Event) -> None:
        """An event of an order. Several ranks may tell how it ended: the first counts."""
        if event.kind in ("failed", "rejected", "lost") and len(running.workers) > 1:
            running.due = min(running.due, time.monotonic() + PARTING_SECONDS)
        if event.data.get("of_others"):
            running.hearsay = running.hearsay or f"{running.name(worker)}: {event.data['reason']}"
            return
        if event.kind in _ENDS:
            if event.task in running.ended:
                return
            running.ended.add(event.task)
        self._pending.append(event)

    def _let_go(self, running: _Running, worker: WorkerProcess) -> None:
        worker.order = ""
        running.through.append(worker)
        running.due = min(running.due, time.monotonic() + PARTING_SECONDS)
        if len(running.through) == len(running.workers):
            self._finish(running, reason=running.hearsay, log="")

    def _lose(self, worker: WorkerProcess) -> None:
        """The worker is gone: say why, and end its order."""
        self._forget(worker)
        worker.ended(10)
        running = self._running.get(worker.order)
        if running is None:
            return
        reason = worker.reason()
        if len(running.workers) > 1:
            reason = f"{running.name(worker)} is lost: {reason}. When last heard of it was at: {worker.doing}"
        self._finish(running, reason=reason, log=worker.last_words())

    def _finish(self, running: _Running, *, reason: str, log: str) -> None:
        """End an order: the ranks that are not through with it, then every member that has not ended, for this reason,
        and then free its devices."""
        for worker in running.workers:
            if worker not in running.through:
                worker.kill("another rank of its order was lost")
                worker.ended(10)
                self._forget(worker)
        left = [member for member in running.order.members if member.task.identity not in running.ended]
        if running.order.purpose == "fingerprint":
            left = left[:1]  # tasks are built in order: the first one left was under way, the others never began
        data: dict[str, Any] = {"reason": reason, "log": log}
        now = time.time()
        self._pending += [
            Event(kind="lost", task=m.task.identity, attempt=m.attempt, at_seconds=now, data=data) for m in left
        ]
        self._pending.append(Event(kind="released", at_seconds=now, data={"placement": running.order.name}))
        running.close()
        del self._running[running.order.name]

    def _forget(self, worker: WorkerProcess) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.channel)
        worker.channel.close()
        if self._workers.get(worker.devices) is worker:
            del self._workers[worker.devices]
