"""The engine `local`: worker processes on this machine, each bound to its devices and reused for their orders.

A worker costs seconds to start (it imports torch), so it stays. An order goes to the worker of exactly its devices:
thread counts are settled when a process starts, so one that had 1 core cannot serve 2. A worker that dies, falls
silent, or loses its socket is lost with its reason and the tail of its log; the next order starts a new one.
"""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dovetail.engines.base import Engine, Order
from dovetail.vocabulary import Cluster, DovetailError, Event, dumps, from_json, to_json

WAIT_SECONDS = 0.5
LOG_TAIL_BYTES = 3000

# After one of these a task has nothing more to report of its order.
_ENDS = ("finished", "waiting", "stopped", "failed", "lost", "fingerprinted", "measured", "rejected")


@dataclasses.dataclass(kw_only=True)
class _Process:
    devices: tuple[str, ...]
    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    log: Path
    heard_at: float
    buffer: bytes = b""
    order: Order | None = None
    log_from: int = 0
    doomed: str = ""
    ended: set[str] = dataclasses.field(default_factory=set)


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
        self._workers: dict[tuple[str, ...], _Process] = {}
        self._pending: list[Event] = []
        self._given: list[Event] = []
        (self._home / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, order: Order) -> None:
        """Hand the order to its devices' worker, starting one if need be."""
        device = self._cluster.device(order.devices[0])
        worker = self._workers.pop(order.devices, None) or self._spawn(order.devices)
        self._workers[order.devices] = worker  # last in the dict is the one used last
        assert worker.order is None, f"{order.devices} are busy with {worker.order and worker.order.name}"
        worker.order, worker.ended = order, set()
        worker.log_from = worker.log.stat().st_size if worker.log.exists() else 0
        kind = self._cluster.kind(device.kind)
        message = {
            "do": "order",
            "order": to_json(order),
            "kind": to_json(kind),
            "threads": self._threads(order.devices),
            "home": str(self._home),
        }
        self._send(worker, message)

    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """Through the socket; without saving, by killing the process."""
        for worker in list(self._workers.values()):
            if worker.order is None or worker.order.name != name:
                continue
            if save:
                self._send(worker, {"do": "stop", "name": name, "reason": reason})
            else:
                worker.doomed = reason
                worker.process.kill()

    def wait(self) -> list[Event]:
        """Events from all workers, at most half a second away."""
        self._acknowledge()
        for key, _ in self._selector.select(0 if self._pending else WAIT_SECONDS):
            self._receive(key.data)
        for worker in list(self._workers.values()):
            silent = time.monotonic() - worker.heard_at
            if silent > self._silence_seconds:
                worker.doomed = f"no heartbeat for {silent:.0f} s, the limit is {self._silence_seconds:.0f} s"
                worker.process.kill()
                self._lose(worker)
        self._given, self._pending = self._pending, []
        return self._given

    def now(self) -> float:
        """The wall clock."""
        return time.time()

    def close(self) -> None:
        """End all workers, the busy ones by force."""
        for worker in list(self._workers.values()):
            if worker.order is None:
                self._send(worker, {"do": "exit"})
            else:
                worker.process.kill()
        for worker in list(self._workers.values()):
            try:
                worker.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            self._forget(worker)
        self._selector.close()

    def processes(self) -> dict[str, int]:
        """The process numbers of live workers by device, for tests and fault injection."""
        return {",".join(devices): worker.process.pid for devices, worker in self._workers.items()}

    def _acknowledge(self) -> None:
        saved = {event.task: event.data["step"] for event in self._given if event.kind == "saved"}
        for worker in self._workers.values() if saved else ():
            for member in worker.order.members if worker.order else ():
                if member.task.identity in saved:
                    step = saved[member.task.identity]
                    self._send(worker, {"do": "acknowledge", "task": member.task.identity, "step": step})

    def _spawn(self, devices: tuple[str, ...]) -> _Process:
        self._make_room()
        ours, theirs = socket.socketpair()
        log = self._home / "logs" / f"worker-{'-'.join(devices).replace(':', '-')}.log"
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output, theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.engines.worker", str(theirs.fileno()), *self._cores(devices)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(devices),
                start_new_session=True,  # the terminal's Ctrl-C is not for workers
            )
        worker = _Process(devices=devices, process=process, channel=ours, log=log, heard_at=time.monotonic())
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _make_room(self) -> None:
        """Idle workers take memory: of those that were not used for longest, end what is beyond two a device."""
        idle = [worker for worker in self._workers.values() if worker.order is None]
        for worker in idle[: max(0, len(self._workers) + 1 - 2 * len(self._cluster.devices))]:
            self._send(worker, {"do": "exit"})
            self._forget(worker)

    def _cores(self, devices: tuple[str, ...]) -> list[str]:
        found = [self._cluster.device(device) for device in devices]
        return [str(device.index) for device in found if self._cluster.kind(device.kind).processor == "cpu"]

    def _threads(self, devices: tuple[str, ...]) -> int:
        node = self._cluster.node(self._cluster.device(devices[0]).node)
        return len(self._cores(devices)) or max(1, node.cores // max(1, len(self._cluster.devices)))

    def _environment(self, devices: tuple[str, ...]) -> dict[str, str]:
        found = self._cluster.device(devices[0])
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(self._threads(devices))
        # What the controller can import, its workers can.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment.setdefault("PYTHONUNBUFFERED", "1")
        if self._cluster.kind(found.kind).processor == "cuda":
            indices = [str(self._cluster.device(device).index) for device in devices]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(indices)
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which they were detected
        return environment

    def _send(self, worker: _Process, message: dict[str, Any]) -> None:
        # A dead worker shows itself by the end of its socket, where it is dealt with.
        with contextlib.suppress(OSError):
            worker.channel.sendall(dumps(message).encode() + b"\n")

    def _receive(self, worker: _Process) -> None:
        try:
            data = worker.channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._lose(worker)
            return
        worker.heard_at = time.monotonic()
        *lines, worker.buffer = (worker.buffer + data).split(b"\n")
        for line in lines:
            self._handle(worker, json.loads(line))

    def _handle(self, worker: _Process, message: dict[str, Any]) -> None:
        if "event" in message and worker.order is not None:
            event = from_json(Event, message["event"])
            if event.kind in (
                "finished",
                "waiting",
                "stopped",
                "failed",
                "fingerprinted",
                "measured",
                "rejected",
                "lost",
            ):
                worker.ended.add(event.task)
            self._pending.append(event)
        elif "released" in message and worker.order is not None:
            self._release(worker)

    def _release(self, worker: _Process) -> None:
        assert worker.order is not None
        self._pending.append(Event(kind="released", at_seconds=time.time(), data={"placement": worker.order.name}))
        worker.order = None

    def _lose(self, worker: _Process) -> None:
        """The worker is gone: say why, for every member that had not ended, and free its devices."""
        self._forget(worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=10)
        if worker.order is None:
            return
        data = {"reason": self._reason(worker), "log": _tail(worker.log, worker.log_from)}
        left = [member for member in worker.order.members if member.task.identity not in worker.ended]
        if worker.order.purpose == "fingerprint":
            left = left[:1]  # tasks are built in order: the first one left was under way, the others never began
        self._pending += [
            Event(kind="lost", task=m.task.identity, attempt=m.attempt, at_seconds=time.time(), data=data) for m in left
        ]
        self._release(worker)

    def _reason(self, worker: _Process) -> str:
        code = worker.process.poll()
        name = f"worker process {worker.process.pid} on {', '.join(worker.devices)}"
        if worker.doomed:
            return f"{name} was ended: {worker.doomed}"
        if code is None:
            return f"{name} closed its socket"
        if code < 0:
            hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
            return f"{name} was killed by {signal.Signals(-code).name}{hint}"
        return f"{name} exited with code {code}"

    def _forget(self, worker: _Process) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.channel)
        worker.channel.close()
        if self._workers.get(worker.devices) is worker:
            del self._workers[worker.devices]


def _tail(path: Path, start: int) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = path.stat().st_size
        file.seek(max(start, size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""
