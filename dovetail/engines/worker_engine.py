"""Orders on workers: what the engines whose workers are processes have in common, wherever those run.

A worker costs seconds to start (it imports torch), so it stays. An order goes to the worker of exactly its devices:
thread counts are settled when a process starts, so one that had 1 core cannot serve 2. An order whose technique takes
one process a device goes to the workers of its devices one by one, each a rank. One whose members need nothing of each
other goes to workers in lanes of one device, each with a member, where several can compute there at once, and one that
builds many tasks to all that are there; such a worker is lost alone. Any other that dies, falls silent, or cannot be
reached any more is lost with its reason and the tail of its log, and with it the order and the other ranks;
the next order starts new ones. Knows nothing of how workers are started and reached.
"""

import abc
import dataclasses
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail.engines.base import Engine, MemberOrder, Order
from dovetail.engines.worker_handle import Place, RunningOrder, WorkerHandle, session_threads, threads_of
from dovetail.engines.worker_messages import read_reported
from dovetail.planning.techniques import spec_of
from dovetail.vocabulary import Cluster, DovetailError, Event, FrozenDict, to_json
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStopped,
    CheckpointSaved,
    DevicesReleased,
    DevicesVacated,
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
        self._workers: dict[Place, WorkerHandle] = {}
        self._running: dict[str, RunningOrder] = {}
        self._pending: list[Event] = []
        self._given: list[Event] = []
        self._listened_at = time.monotonic()
        self._may_build_in_lanes = True
        (self._home / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)

    @abc.abstractmethod
    def _start_worker(self, devices: tuple[str, ...], lane: int = 0) -> WorkerHandle:
        """Start a worker on these devices. Returns at once."""

    def _has_lanes(self, devices: tuple[str, ...]) -> bool:
        """Whether several workers can compute on these devices at the same moment."""
        return False

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
        parts, spec = self._parts(order), spec_of(order.technique)
        is_apart = not spec.ranked and (len(parts) > 1 or parts[0][0][1] > 0)
        running = RunningOrder(order=order, workers=[], parts=[part for _, part in parts] if is_apart else ())
        self._running[order.name], workers = running, running.workers
        try:
            workers += [self._worker_for(place) for place, _ in parts]
            rendezvous = self._make_rendezvous(order.name, workers) if spec.ranked else ""
        except OSError as error:  # no process can be started, or nothing written: this passes, or is met again
            self._end_order(running, reason=f"its worker could not be started: {error}")
            return
        kind = self._cluster.kind(self._cluster.device(order.devices[0]).kind)
        for rank, (worker, (_, part)) in enumerate(zip(workers, parts, strict=True)):
            message: dict[str, Any] = {
                "do": "order",
                "order": to_json(part),
                "kind": to_json(kind),
                "threads": threads_of(worker.devices, self._cluster),
                "session_threads": session_threads(
                    worker.devices, self._cluster, on_host=spec.on_host, feed_cores=order.feed_cores
                ),
                "home": str(self._home),
                "ranks": {"rank": rank, "size": len(workers), "rendezvous": rendezvous} if spec.ranked else None,
                "lane": worker.lane,
            }
            worker.idle_seconds = 0.0
            worker.begin(order.name, message)
        if noticed := next((worker for worker in workers if worker in self._given_notice), None):
            self._stop_noticed(running, noticed)  # it still saves what it had before

    def _parts(self, order: Order) -> list[tuple[Place, Order]]:
        """Which worker carries out what of an order: all the same, or where members can be apart each has its own. What
        is only built needs no device, so that all workers in its lanes that have nothing to do take a share."""
        spec = spec_of(order.technique)
        if spec.ranked:
            row = order.knobs.get("row", range(len(order.devices)))  # which device each rank has
            return [(((order.devices[place],), 0), order) for place in row]
        is_built = order.purpose == "fingerprint"
        if not (is_built or (order.purpose == "train" and spec.apart)) or not self._has_lanes(order.devices):
            return [((order.devices, 0), order)]
        if is_built:
            places = [(order.devices, 0), *self._idle_lanes(order.devices)]
            size = -(-len(order.members) // len(places))
            shares = [order.members[first : first + size] for first in range(0, len(order.members), size)]
            return [
                (place, dataclasses.replace(order, members=share)) for place, share in zip(places, shares, strict=False)
            ]
        return [
            ((order.devices, lane), dataclasses.replace(order, members=(member,), technique=spec.apart, knobs={}))
            for lane, member in enumerate(order.members, start=1)
        ]

    def _idle_lanes(self, devices: tuple[str, ...]) -> list[Place]:
        """The places in lanes of these devices whose workers are there and have nothing to do."""
        if not self._may_build_in_lanes:
            return []
        there = [place for place, worker in self._workers.items() if worker.lane and not self._is_busy(worker)]
        return sorted(place for place in there if place[0] == devices)

    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """Ask rank 0, which the others follow, to save and end, or everybody where none follows another; without
        saving, kill the processes."""
        running = self._running.get(name)
        if running is None:
            return
        if save:
            for worker in running.workers if running.is_apart else running.workers[:1]:
                worker.send({"do": "stop", "name": name, "reason": reason})
            return
        for worker in running.workers if not running.is_vacated else ():  # it ends by itself, and others run there
            if worker not in running.released:
                worker.kill(reason)

    def fetch(self, devices: tuple[str, ...], directory: str) -> None:
        """Ask the worker of these devices, if there is one."""
        if (worker := self._workers.get((devices, 0))) is not None:
            worker.send({"do": "fetch", "directory": directory})

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
            idle = min(worker.idle_seconds for worker in running.workers) if running.is_ranked else 0.0
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
            if self._is_busy(worker):
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
                    task, step = member.task.identity, saved[member.task.identity]
                    running.worker_of(task).send({"do": "acknowledge", "task": task, "step": step})

    def _worker_for(self, place: Place) -> WorkerHandle:
        worker = self._workers.pop(place, None)
        if worker is None:
            self._stop_idle_workers()
            worker = self._start_worker(*place)
        self._workers[place] = worker  # last in the dict is the one used last
        return worker

    def _stop_idle_workers(self) -> None:
        """Keep at most two workers a device, lanes apart, because idle ones take memory: stop those not used for
        longest."""
        whole = [worker for worker in self._workers.values() if not worker.lane]
        idle = [worker for worker in whole if not self._is_busy(worker)]
        for worker in idle[: max(0, len(whole) + 1 - 2 * len(self._cluster.devices))]:
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
            name = next((message[word] for word in ("order", "vacated", "released") if word in message), worker.order)
            running = self._running.get(name)
            if running is None or worker not in running.workers:
                continue
            if "event" in message:
                self._record(running, worker, read_reported(message["event"], tasks=running.tasks))
            elif "vacated" in message and len(running.workers) == 1 and worker.order == name:
                worker.order, running.is_vacated = "", True
                self._pending.append(DevicesVacated(at_seconds=self.now(), placement=name))
            elif "released" in message:
                share = 1 / len(running.workers) if running.is_apart else float(worker is running.workers[0])
                for word, seconds in message.get("seconds", {}).items() if share else ():
                    running.seconds[word] = running.seconds.get(word, 0.0) + share * seconds
                if "busy" in message:  # those who share a device each tell of all of it
                    part = share if running.is_apart else 1.0
                    running.busy_seconds = (running.busy_seconds or 0.0) + part * message["busy"]
                held = worker.held_bytes = message.get("held", 0)
                running.held_bytes = running.held_bytes + held if running.is_apart else max(running.held_bytes, held)
                self._release_worker(running, worker)

    def _record(self, running: RunningOrder, worker: WorkerHandle, event: Event) -> None:
        """Take up an event of an order. Of several ranks that report a task's end, the first counts."""
        if isinstance(event, TaskFailed | OptionRejected | AttemptLost) and running.is_ranked:
            running.deadline = min(running.deadline, time.monotonic() + RELEASE_SECONDS)
        if isinstance(event, AttemptLost) and event.of_others:
            running.hearsay = running.hearsay or f"{running.name(worker)}: {event.reason}"
            return
        if isinstance(event, _ENDS):
            if event.task in running.ended_tasks:
                return
            running.ended_tasks.add(event.task)
            if isinstance(event, AttemptLost):
                running.lost_tasks.add(event.task)
        if isinstance(event, TaskFailed) and event.cause == "memory" and running.is_building_apart:
            # There may be enough for one at a time: who was lost is built again in an order of its own.
            event = AttemptLost(
                task=event.task, attempt=event.attempt, at_seconds=event.at_seconds, reason=event.reason, log=event.log
            )
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
        if not self._is_busy(worker):
            self._stop_worker(worker)
        elif running is not None:
            self._stop_noticed(running, worker)

    def _stop_noticed(self, running: RunningOrder, worker: WorkerHandle) -> None:
        """End the order of a worker that was given notice; where others build what they have of it, its part alone."""
        reason = f"the worker on {', '.join(worker.devices)} was given notice"
        if running.is_building_apart:
            worker.kill(reason)
        else:
            self.stop(running.order.name, reason=reason, save=running.order.purpose == "train")

    def _stop_worker(self, worker: WorkerHandle) -> None:
        """Ask a worker that has nothing to do to exit; `wait` and `close` see that it does."""
        worker.send({"do": "exit"})
        self._remove_worker(worker)
        self._stopping.append(worker)

    def _release_worker(self, running: RunningOrder, worker: WorkerHandle) -> None:
        """A worker has released an order, and is free for the next one; the order ends with its last worker."""
        if worker.order == running.order.name:
            worker.order = ""
        running.released.append(worker)
        if worker in self._given_notice and not self._is_busy(worker):
            self._stop_worker(worker)
        if running.is_ranked:
            running.deadline = min(running.deadline, time.monotonic() + RELEASE_SECONDS)
        if len(running.released) == len(running.workers):
            self._end_order(running, reason=self._lost_link(running) if running.hearsay else "")

    def _lost_link(self, running: RunningOrder) -> str:
        """Why ranks that are all there have ended, saying that others were gone."""
        nodes = ", ".join(dict.fromkeys(self._cluster.device(device).node for device in running.order.devices))
        return f"its ranks on {nodes} are alive, and the link between two of them is lost; {running.hearsay}"

    def _handle_lost(self, worker: WorkerHandle) -> None:
        """A worker is gone: remove it, and end its orders with the reason."""
        self._remove_worker(worker)
        worker.exited(10)
        for running in self._orders_of(worker):
            self._lose_worker(running, worker)

    def _orders_of(self, worker: WorkerHandle) -> list[RunningOrder]:
        """What a worker has yet to release: what it carries out, and what it still saves."""
        return [each for each in self._running.values() if worker in each.workers and worker not in each.released]

    def _is_busy(self, worker: WorkerHandle) -> bool:
        return bool(worker.order or self._orders_of(worker))

    def _lose_worker(self, running: RunningOrder, worker: WorkerHandle) -> None:
        reason = worker.reason()
        if running.is_apart:
            self._lose_part(running, worker, reason)
            return
        if running.is_ranked:
            reason = f"{running.name(worker)} is lost: {reason}. When last heard of it was at: {worker.doing}"
        self._end_order(running, reason=reason, ending=worker.ending(), log=worker.log_tail())

    def _lose_part(self, running: RunningOrder, worker: WorkerHandle, reason: str) -> None:
        """One of several workers that are apart is gone, and what it had lost; the others go on."""
        part = running.parts[running.workers.index(worker)]
        # What ended it may end the next ones as well, and to build in one worker is only slower.
        self._may_build_in_lanes &= not (running.is_building_apart and worker.lane)
        self._lose_members(running, part.members, reason=reason, ending=worker.ending(), log=worker.log_tail())
        running.released.append(worker)
        if len(running.released) == len(running.workers):
            self._end_order(running, reason="")

    def _lose_members(
        self, running: RunningOrder, members: Iterable[MemberOrder], *, reason: str, ending: str = "", log: str = ""
    ) -> None:
        """Report those of these members that have not ended as lost."""
        members = list(members)
        ended = [member.task.identity for member in members if member.task.identity in running.ended_tasks]
        left = [member for member in members if member.task.identity not in running.ended_tasks]
        running.ended_tasks |= {member.task.identity for member in left}
        if running.order.purpose == "fingerprint":
            # Tasks are built in order: the first one left was under way, the others never began; and nor did that one
            # where the worker ended over the task before it, as it has said.
            left = left[:1] if not running.lost_tasks & set(ended[-1:]) else []
        self._pending += [
            AttemptLost(
                task=member.task.identity,
                attempt=member.attempt,
                at_seconds=self.now(),
                reason=reason,
                ending=ending,
                log=log,
            )
            for member in left
        ]

    def _end_order(self, running: RunningOrder, *, reason: str, ending: str = "", log: str = "") -> None:
        """End an order: kill the ranks that have not released it, report every task that has not ended as lost for
        this reason, and free the devices."""
        for worker in running.workers:
            if worker not in running.released and not running.is_vacated:
                worker.kill("another rank of its order was lost")
                worker.exited(10)
                self._remove_worker(worker)
        self._lose_members(running, running.order.members, reason=reason, ending=ending, log=log)
        released = DevicesReleased(
            at_seconds=self.now(),
            placement=running.order.name,
            seconds=FrozenDict(running.seconds),
            busy_seconds=running.busy_seconds,
            held_bytes=running.held_bytes,
        )
        self._pending.append(released)
        self._remove_rendezvous(running.order.name)
        del self._running[running.order.name]

    def _remove_worker(self, worker: WorkerHandle) -> None:
        self._disconnect(worker)
        self._given_notice.discard(worker)
        if self._workers.get(worker.place) is worker:
            del self._workers[worker.place]
