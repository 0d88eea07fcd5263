"""Orders on workers: what the engines whose workers are processes have in common, wherever those run.

A worker costs seconds to start (it imports torch), so it stays. An order goes to the worker of exactly its devices:
thread counts are settled when a process starts, so one that had 1 core cannot serve 2. An order whose technique takes
one process a device goes to the workers of its devices one by one, each a rank. A worker that dies, falls silent, or
cannot be reached any more is lost with its reason and the tail of its log, and with it the order and the other ranks;
the next order starts new ones. Knows nothing of how workers are started and reached.
"""

import abc
import dataclasses
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail.engines.base import Engine, Order
from dovetail.engines.worker_handle import RunningOrder, WorkerHandle, threads_of
from dovetail.planning.techniques import spec_of
from dovetail.vocabulary import Cluster, DovetailError, Event, read_event, to_json
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStopped,
    CheckpointSaved,
    DevicesReleased,
    OptionRejected,
    RungReached,
    TaskFailed,
    TaskFingerprinted,
    TaskFinished,
    TrialMeasured,
)

WAIT_SECONDS = 0.5
# Once one rank is through with an order, however that ended, the others have so long to be through as well.
PARTING_SECONDS = 5.0
# Ranks that are within a step and all idle wait for one another for ever; messages under way take less than this.
STALL_SECONDS = 15.0

# What a worker says it happened at is believed unless it is this far off: its clock, or this one's, was set meanwhile.
SKEW_SECONDS = 60.0

# After one of these a task has nothing more to report of its order.
_ENDS = (
    TaskFinished,
    RungReached,
    AttemptStopped,
    TaskFailed,
    AttemptLost,
    TaskFingerprinted,
    TrialMeasured,
    OptionRejected,
)


class WorkerEngine(Engine):
    """Placements on workers. A subclass says how workers are started, listened to and let go.

    `home` is the store's directory: logs go there, pickled programs come from there. A worker that sends no
    heartbeat for `silence_seconds` is killed and its order lost.
    """

    def __init__(self, cluster: Cluster, *, home: Path, silence_seconds: float = 20.0) -> None:
        if os.environ.get("DOVETAIL_WORKER"):
            raise DovetailError(
                "a program's file must not run a workload when it is imported; this one does, inside a worker. "
                "Put the call to dt.run under: if __name__ == '__main__':"
            )
        self._cluster, self._home, self._silence_seconds = cluster, home.resolve(), silence_seconds
        # Read once: a clock that is set while this runs changes no length of time.
        self._epoch_seconds = time.time() - time.monotonic()
        self._leaving: set[WorkerHandle] = set()
        self._retired: list[WorkerHandle] = []
        self._workers: dict[tuple[str, ...], WorkerHandle] = {}
        self._running: dict[str, RunningOrder] = {}
        self._pending: list[Event] = []
        self._given: list[Event] = []
        (self._home / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)

    @abc.abstractmethod
    def _hire(self, devices: tuple[str, ...]) -> WorkerHandle:
        """Start a worker on these devices. Returns at once."""

    @abc.abstractmethod
    def _listen(self, seconds: float) -> Iterable[tuple[WorkerHandle, list[dict[str, Any]] | None]]:
        """What workers said, or None for one that will say no more; waits so long for the first of them to speak.
        Lazily, because a rank that is lost takes the others along: none is heard that was dismissed meanwhile."""

    @abc.abstractmethod
    def _dismiss(self, worker: WorkerHandle) -> None:
        """A worker has ended, or was told to: listen to it no more."""

    @abc.abstractmethod
    def _meet(self, order: str, workers: list[WorkerHandle]) -> str:
        """Make a place where the ranks of an order meet, one of its own for every attempt: one that a killed group
        has used rarely lets the next one in. Gives it as torch understands it."""

    @abc.abstractmethod
    def _part(self, order: str) -> None:
        """Remove the place where the ranks of an order met, if there was one."""

    def start(self, order: Order) -> None:
        """Hand the order to its devices' worker, or workers, starting them if need be."""
        ranked = spec_of(order.technique).ranked
        shares = [(device,) for device in order.devices] if ranked else [order.devices]
        running = self._running[order.name] = RunningOrder(order=order, workers=[])
        workers = running.workers
        try:
            workers += [self._worker(devices) for devices in shares]
            rendezvous = self._meet(order.name, workers) if ranked else ""
        except OSError as error:  # no process can be started, or nothing written: this passes, or is met again
            self._finish(running, reason=f"its worker could not be started: {error}", log="")
            return
        kind = self._cluster.kind(self._cluster.device(order.devices[0]).kind)
        for rank, worker in enumerate(workers):
            message: dict[str, Any] = {
                "do": "order",
                "order": to_json(order),
                "kind": to_json(kind),
                "threads": threads_of(worker.devices, self._cluster),
                "home": str(self._home),
                "ranks": {"rank": rank, "size": len(workers), "rendezvous": rendezvous} if ranked else None,
            }
            worker.idle_seconds = 0.0
            worker.begin(order.name, message)

    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """By a word to rank 0, whom the others follow; without saving, by killing the processes."""
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
        for worker, messages in self._listen(0 if self._pending else WAIT_SECONDS):
            self._hear(worker, messages)
        self._retired = [worker for worker in self._retired if not worker.ended(0)]
        now = time.monotonic()
        for worker in list(self._workers.values()):
            silent = now - worker.heard_at
            if silent > self._silence_seconds:
                worker.kill(f"no heartbeat for {silent:.0f} s, the limit is {self._silence_seconds:.0f} s")
                self._lose(worker)
        for running in list(self._running.values()):
            idle = min(worker.idle_seconds for worker in running.workers) if len(running.workers) > 1 else 0.0
            if idle >= STALL_SECONDS:
                stalled = next((w for w in running.workers if not w.doing.startswith("waiting")), running.workers[0])
                stalled.kill(f"it stalled: no rank has computed anything for {idle:.0f} s, and the others wait")
                self._lose(stalled)
                continue
            if now > running.due:
                late = [worker for worker in running.workers if worker not in running.through]
                reason = f"{running.name(late[0])} did not end with the others; it was at: {late[0].doing}"
                # Whoever hangs is among the late ones; the others say only that they waited for it.
                reason = f"{reason}. {running.hearsay}" if running.hearsay else reason
                self._finish(running, reason=reason, log=late[0].last_words())
        self._given, self._pending = self._pending, []
        return self._given

    def now(self) -> float:
        """The wall clock of when this engine began, and the time since then."""
        return self._epoch_seconds + time.monotonic()

    def close(self) -> None:
        """End all workers, the busy ones by force."""
        for worker in self._workers.values():
            if worker.order:
                worker.kill("the engine was closed")
            else:
                worker.send({"do": "exit"})
        for worker in list(self._workers.values()):
            self._see_off(worker)
            self._forget(worker)
        for worker in self._retired:
            self._see_off(worker)
        self._retired.clear()
        for name in self._running:
            self._part(name)
        self._running.clear()

    def _see_off(self, worker: WorkerHandle) -> None:
        if not worker.ended(5):
            worker.kill("it did not exit")
            worker.ended(10)

    def _acknowledge(self) -> None:
        saved = {event.task: event.step for event in self._given if isinstance(event, CheckpointSaved)}
        for running in self._running.values() if saved else ():
            for member in running.order.members:
                if member.task.identity in saved:
                    step = saved[member.task.identity]
                    running.workers[0].send({"do": "acknowledge", "task": member.task.identity, "step": step})

    def _worker(self, devices: tuple[str, ...]) -> WorkerHandle:
        worker = self._workers.pop(devices, None)
        if worker is None:
            self._make_room()
            worker = self._hire(devices)
        self._workers[devices] = worker  # last in the dict is the one used last
        return worker

    def _make_room(self) -> None:
        """Idle workers take memory: of those that were not used for longest, end what is beyond two a device."""
        idle = [worker for worker in self._workers.values() if not worker.order]
        for worker in idle[: max(0, len(self._workers) + 1 - 2 * len(self._cluster.devices))]:
            self._retire(worker)

    def _hear(self, worker: WorkerHandle, messages: list[dict[str, Any]] | None) -> None:
        if messages is None:
            self._lose(worker)
            return
        for message in messages:
            worker.idle_seconds = message.get("idle", worker.idle_seconds)
            if message.get("notice"):
                self._leave(worker)
            # An order that another rank has ended is gone by now.
            if (running := self._running.get(worker.order)) is None:
                continue
            if "event" in message:
                self._note(running, worker, read_event(**message["event"]))
            elif "released" in message:
                self._let_go(running, worker)

    def _note(self, running: RunningOrder, worker: WorkerHandle, event: Event) -> None:
        """An event of an order. Several ranks may tell how it ended: the first counts."""
        if isinstance(event, TaskFailed | OptionRejected | AttemptLost) and len(running.workers) > 1:
            running.due = min(running.due, time.monotonic() + PARTING_SECONDS)
        if isinstance(event, AttemptLost) and event.of_others:
            running.hearsay = running.hearsay or f"{running.name(worker)}: {event.reason}"
            return
        if isinstance(event, _ENDS):
            if event.task in running.ended:
                return
            running.ended.add(event.task)
        if abs(event.at_seconds - self.now()) > SKEW_SECONDS:
            event = dataclasses.replace(event, at_seconds=self.now())
        self._pending.append(event)

    def _leave(self, worker: WorkerHandle) -> None:
        """A worker was told that it will be ended: what it trains is saved while there is time, and it gets nothing
        more to do. What it measures is not worth waiting for."""
        if worker in self._leaving:
            return
        self._leaving.add(worker)
        running = self._running.get(worker.order)
        reason = f"the worker on {', '.join(worker.devices)} was given notice"
        if running is None:
            self._retire(worker)
        else:
            self.stop(worker.order, reason=reason, save=running.order.purpose == "train")

    def _retire(self, worker: WorkerHandle) -> None:
        worker.send({"do": "exit"})
        self._forget(worker)
        self._retired.append(worker)

    def _let_go(self, running: RunningOrder, worker: WorkerHandle) -> None:
        worker.order = ""
        if worker in self._leaving:
            self._retire(worker)
        running.through.append(worker)
        running.due = min(running.due, time.monotonic() + PARTING_SECONDS)
        if len(running.through) == len(running.workers):
            self._finish(running, reason=running.hearsay, log="")

    def _lose(self, worker: WorkerHandle) -> None:
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

    def _finish(self, running: RunningOrder, *, reason: str, log: str) -> None:
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
        now = self.now()
        self._pending += [
            AttemptLost(task=m.task.identity, attempt=m.attempt, at_seconds=now, reason=reason, log=log) for m in left
        ]
        self._pending.append(DevicesReleased(at_seconds=now, placement=running.order.name))
        self._part(running.order.name)
        del self._running[running.order.name]

    def _forget(self, worker: WorkerHandle) -> None:
        self._dismiss(worker)
        self._leaving.discard(worker)
        if self._workers.get(worker.devices) is worker:
            del self._workers[worker.devices]
