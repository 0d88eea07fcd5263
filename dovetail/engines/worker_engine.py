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
from dovetail.engines.worker_messages import read_reported
from dovetail.planning.techniques import spec_of
from dovetail.vocabulary import Cluster, DovetailError, Event, FrozenDict, to_json
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
# Once one rank has released an order, however that ended, the others have so long to release it as well: what is left
# to do then is a barrier and a garbage collection, which took a crowded machine more than 5 s.
RELEASE_SECONDS = 15.0
# Ranks that are within a step and all idle wait for one another for ever; messages under way take less than this. With
# 15 s healthy ranks were lost on a machine with several times more processes than cores: whoever is not scheduled
# computes nothing, and neither do those who wait for it.
STALL_SECONDS = 30.0

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
    """Placements on workers. A subclass says how workers are started, heard and disconnected.

    A worker is *stopped* (asked to exit when it has nothing to do), *killed* (at once), or *lost* (gone by itself). An
    order is *released* by each of its workers and has ended when all have, or when one of them is lost.

    `home` is the store's directory: logs go there, pickled programs come from there. A worker that sends no
    heartbeat for `silence_seconds`, while it is listened to, is killed and its order lost.
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
        self._given_notice: set[WorkerHandle] = set()
        self._stopping: list[WorkerHandle] = []
        self._workers: dict[tuple[str, ...], WorkerHandle] = {}
        self._running: dict[str, RunningOrder] = {}
        self._pending: list[Event] = []
        self._given: list[Event] = []
        self._listened_at = time.monotonic()
        (self._home / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)

    @abc.abstractmethod
    def _start_worker(self, devices: tuple[str, ...]) -> WorkerHandle:
        """Start a worker on these devices. Returns at once."""

    @abc.abstractmethod
    def _receive(self, seconds: float) -> Iterable[tuple[WorkerHandle, list[dict[str, Any]] | None]]:
        """Yield each worker's messages, or None for a worker that is gone; waits up to `seconds` for the first.
        Lazily, because a lost rank takes the others along: a worker removed meanwhile is not heard any more."""

    @abc.abstractmethod
    def _disconnect(self, worker: WorkerHandle) -> None:
        """Receive nothing more from a worker that has exited or was told to."""

    @abc.abstractmethod
    def _make_rendezvous(self, order: str, workers: list[WorkerHandle]) -> str:
        """Make the rendezvous of an order's ranks and give its URL as torch takes it. Every attempt has its own: one
        that a killed group has used rarely lets the next group in."""

    @abc.abstractmethod
    def _remove_rendezvous(self, order: str) -> None:
        """Remove the rendezvous of an order's ranks, if there was one."""

    def start(self, order: Order) -> None:
        """Hand the order to its devices' worker, or workers, starting them if need be."""
        ranked = spec_of(order.technique).ranked
        shares = [(device,) for device in order.devices] if ranked else [order.devices]
        running = self._running[order.name] = RunningOrder(order=order, workers=[])
        workers = running.workers
        try:
            workers += [self._worker_for(devices) for devices in shares]
            rendezvous = self._make_rendezvous(order.name, workers) if ranked else ""
        except OSError as error:  # no process can be started, or nothing written: this passes, or is met again
            self._end_order(running, reason=f"its worker could not be started: {error}")
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
        """Ask rank 0, which the others follow, to save and end; without saving, kill the processes."""
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
        for worker, messages in self._receive(0 if self._pending else WAIT_SECONDS):
            self._handle_messages(worker, messages)
        self._stopping = [worker for worker in self._stopping if not worker.exited(0)]
        now = self._excuse()
        for worker in list(self._workers.values()):
            silent = now - worker.heard_at
            if silent > self._silence_seconds:
                worker.kill(f"no heartbeat for {silent:.0f} s, the limit is {self._silence_seconds:.0f} s")
                self._handle_lost(worker)
        for running in list(self._running.values()):
            idle = min(worker.idle_seconds for worker in running.workers) if len(running.workers) > 1 else 0.0
            if idle >= STALL_SECONDS:
                stalled = next((w for w in running.workers if not w.doing.startswith("waiting")), running.workers[0])
                stalled.kill(f"it stalled: no rank has computed anything for {idle:.0f} s, and the others wait")
                self._handle_lost(stalled)
                continue
            if now > running.deadline:
                late = [worker for worker in running.workers if worker not in running.released]
                reason = f"{running.name(late[0])} did not end with the others; it was at: {late[0].doing}"
                # Whoever hangs is among the late ones; the others say only that they waited for it.
                reason = f"{reason}. {running.hearsay}" if running.hearsay else reason
                self._end_order(running, reason=reason, log=late[0].log_tail())
        self._given, self._pending = self._pending, []
        return self._given

    def _excuse(self) -> float:
        """Take out of everybody's silence and lateness the time in which nobody listened: a controller that planned for
        long, or that was stopped, has yet to hear what workers sent meanwhile. Gives the time."""
        now = time.monotonic()
        away = now - self._listened_at - WAIT_SECONDS
        self._listened_at = now
        if away > 0:
            for worker in self._workers.values():
                worker.excuse(min(away, now - worker.heard_at))
            for running in self._running.values():
                running.deadline += away
        return now

    def now(self) -> float:
        """The wall clock when this engine began, plus the time since then by the monotonic clock."""
        return self._epoch_seconds + time.monotonic()

    def close(self) -> None:
        """Stop the idle workers and kill the busy ones."""
        for worker in self._workers.values():
            if worker.order:
                worker.kill("the engine was closed")
            else:
                worker.send({"do": "exit"})
        for worker in list(self._workers.values()):
            self._await_exit(worker)
            self._remove_worker(worker)
        for worker in self._stopping:
            self._await_exit(worker)
        self._stopping.clear()
        for name in self._running:
            self._remove_rendezvous(name)
        self._running.clear()

    def _await_exit(self, worker: WorkerHandle) -> None:
        if not worker.exited(5):
            worker.kill("it did not exit")
            worker.exited(10)

    def _acknowledge(self) -> None:
        saved = {event.task: event.step for event in self._given if isinstance(event, CheckpointSaved)}
        for running in self._running.values() if saved else ():
            for member in running.order.members:
                if member.task.identity in saved:
                    step = saved[member.task.identity]
                    running.workers[0].send({"do": "acknowledge", "task": member.task.identity, "step": step})

    def _worker_for(self, devices: tuple[str, ...]) -> WorkerHandle:
        worker = self._workers.pop(devices, None)
        if worker is None:
            self._stop_idle_workers()
            worker = self._start_worker(devices)
        self._workers[devices] = worker  # last in the dict is the one used last
        return worker

    def _stop_idle_workers(self) -> None:
        """Keep at most two workers a device, because idle ones take memory: stop those not used for longest."""
        idle = [worker for worker in self._workers.values() if not worker.order]
        for worker in idle[: max(0, len(self._workers) + 1 - 2 * len(self._cluster.devices))]:
            self._stop_worker(worker)

    def _handle_messages(self, worker: WorkerHandle, messages: list[dict[str, Any]] | None) -> None:
        if messages is None:
            self._handle_lost(worker)
            return
        try:
            self._handle_said(worker, messages)
        except (ValueError, RecursionError) as error:  # whatever a worker says, it is no reason to lose others
            worker.kill(f"what it sent cannot be read: {error}")
            self._handle_lost(worker)

    def _handle_said(self, worker: WorkerHandle, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            worker.idle_seconds = message.get("idle", worker.idle_seconds)
            if message.get("notice"):
                self._handle_notice(worker)
            # An order that another rank has ended is gone by now.
            if (running := self._running.get(worker.order)) is None:
                continue
            if "event" in message:
                self._record(running, worker, read_reported(message["event"], tasks=running.tasks))
            elif "released" in message:
                if worker is running.workers[0]:
                    running.seconds = message.get("seconds", {})
                self._release_worker(running, worker)

    def _record(self, running: RunningOrder, worker: WorkerHandle, event: Event) -> None:
        """Take up an event of an order. Of several ranks that report a task's end, the first counts."""
        if isinstance(event, TaskFailed | OptionRejected | AttemptLost) and len(running.workers) > 1:
            running.deadline = min(running.deadline, time.monotonic() + RELEASE_SECONDS)
        if isinstance(event, AttemptLost) and event.of_others:
            running.hearsay = running.hearsay or f"{running.name(worker)}: {event.reason}"
            return
        if isinstance(event, _ENDS):
            if event.task in running.ended_tasks:
                return
            running.ended_tasks.add(event.task)
        if abs(event.at_seconds - self.now()) > SKEW_SECONDS:
            event = dataclasses.replace(event, at_seconds=self.now())
        self._pending.append(event)

    def _handle_notice(self, worker: WorkerHandle) -> None:
        """A worker's machine will be taken away: save what it trains while there is time, and give it nothing more to
        do. What it measures is not worth waiting for."""
        if worker in self._given_notice:
            return
        self._given_notice.add(worker)
        running = self._running.get(worker.order)
        reason = f"the worker on {', '.join(worker.devices)} was given notice"
        if running is None:
            self._stop_worker(worker)
        else:
            self.stop(worker.order, reason=reason, save=running.order.purpose == "train")

    def _stop_worker(self, worker: WorkerHandle) -> None:
        """Ask a worker that has nothing to do to exit; `wait` and `close` see that it does."""
        worker.send({"do": "exit"})
        self._remove_worker(worker)
        self._stopping.append(worker)

    def _release_worker(self, running: RunningOrder, worker: WorkerHandle) -> None:
        """A worker has released an order, and is free for the next one; the order ends with its last worker."""
        worker.order = ""
        if worker in self._given_notice:
            self._stop_worker(worker)
        running.released.append(worker)
        running.deadline = min(running.deadline, time.monotonic() + RELEASE_SECONDS)
        if len(running.released) == len(running.workers):
            self._end_order(running, reason=running.hearsay)

    def _handle_lost(self, worker: WorkerHandle) -> None:
        """A worker is gone: remove it, and end its order with the reason."""
        self._remove_worker(worker)
        worker.exited(10)
        running = self._running.get(worker.order)
        if running is None:
            return
        reason = worker.reason()
        if len(running.workers) > 1:
            reason = f"{running.name(worker)} is lost: {reason}. When last heard of it was at: {worker.doing}"
        self._end_order(running, reason=reason, ending=worker.ending(), log=worker.log_tail())

    def _end_order(self, running: RunningOrder, *, reason: str, ending: str = "", log: str = "") -> None:
        """End an order: kill the ranks that have not released it, report every task that has not ended as lost for
        this reason, and free the devices."""
        for worker in running.workers:
            if worker not in running.released:
                worker.kill("another rank of its order was lost")
                worker.exited(10)
                self._remove_worker(worker)
        left = [member for member in running.order.members if member.task.identity not in running.ended_tasks]
        if running.order.purpose == "fingerprint":
            left = left[:1]  # tasks are built in order: the first one left was under way, the others never began
        now = self.now()
        self._pending += [
            AttemptLost(task=m.task.identity, attempt=m.attempt, at_seconds=now, reason=reason, ending=ending, log=log)
            for m in left
        ]
        spent = FrozenDict(running.seconds)
        self._pending.append(DevicesReleased(at_seconds=now, placement=running.order.name, seconds=spent))
        self._remove_rendezvous(running.order.name)
        del self._running[running.order.name]

    def _remove_worker(self, worker: WorkerHandle) -> None:
        self._disconnect(worker)
        self._given_notice.discard(worker)
        if self._workers.get(worker.devices) is worker:
            del self._workers[worker.devices]
