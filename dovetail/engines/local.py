"""The engine `local`: worker processes on this machine, each reached by a socket."""

import contextlib
import os
import selectors
import shutil
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from dovetail.engines.base import Order
from dovetail.engines.fork_server import PRELOADED
from dovetail.engines.mps import Mps
from dovetail.engines.processes import WorkerProcess
from dovetail.engines.spares import Spares
from dovetail.engines.worker_engine import WorkerEngine
from dovetail.engines.worker_handle import RunningOrder, WorkerHandle
from dovetail.planning.techniques import spec_of
from dovetail.planning.techniques.beside import MOST_LANES
from dovetail.store import make_scratch
from dovetail.vocabulary import Cluster

# To start workers again takes a part of what an order longer than this takes, no more.
LONG_SECONDS = 60.0
# A worker in a lane that keeps more than this of what it built is in the way of trials: imports and a context on
# an accelerator take less, and so large a task takes longer to build than another worker to start.
KEPT_BYTES = 2 << 30


class LocalEngine(WorkerEngine):
    """Placements in worker processes of this machine; the first workers are taken from `spares` where those suit, and
    given back to them at the end where they are lasting."""

    def __init__(
        self, cluster: Cluster, *, home: Path, silence_seconds: float = 20.0, spares: Spares | None = None
    ) -> None:
        super().__init__(cluster, home=home, silence_seconds=silence_seconds)
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        for end in (self._bell, self._ear):
            end.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._meetings: dict[str, Path] = {}
        self._spares = spares if spares is not None and spares.lasting else None
        self._starts = spares
        for worker in spares.take(cluster) if spares is not None else ():
            worker.configure(self._log(worker.devices, worker.lane))
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            self._workers[worker.place] = worker
            # They were started before somebody said that this cluster has none.
            if worker.lane and not self._may_have_lanes(worker.devices):
                self._stop_worker(worker)
        self._mps = spares.take_mps() if spares is not None else None
        self._has_asked_mps = False

    def find(self, paths: Collection[str]) -> Mapping[str, Collection[str]]:
        """Which of these paths exist on this machine, whatever its nodes are called."""
        found = [path for path in paths if os.path.exists(path)]
        return {node.name: found for node in self._cluster.nodes}

    def start(self, order: Order) -> None:
        """Hand the order to its devices' worker, or workers, starting them if need be."""
        if order.predicted_seconds > LONG_SECONDS and not spec_of(order.technique).apart:
            self._stop_lanes(order.devices)
        super().start(order)
        if order.purpose == "fingerprint" and self._has_lanes(order.devices):
            with contextlib.suppress(OSError):  # the order that wants them says so if they cannot be started
                self._prepare_lanes(order.devices, min(len(order.members), MOST_LANES))

    def close(self) -> None:
        """Give the idle workers back or stop them, and kill the busy ones."""
        for worker in list(self._workers.values()) if self._spares is not None else ():
            if isinstance(worker, WorkerProcess) and not self._is_busy(worker) and not worker.lane:
                assert self._spares is not None
                self._selector.unregister(worker.channel)
                del self._workers[worker.place]
                self._spares.give(worker)
        super().close()
        if self._mps is not None:
            self._mps.close()
            self._mps = None
        self._selector.close()
        self._bell.close()
        self._ear.close()

    def interrupt(self) -> None:
        """End a `wait` that is under way, or the next one."""
        with contextlib.suppress(OSError):  # one that has rung so often is heard anyway
            self._bell.send(b"!")

    def _has_lanes(self, devices: tuple[str, ...]) -> bool:
        """Asks for the service when it is first wanted, and no more once there was none."""
        if not self._may_have_lanes(devices):
            return False
        if not self._has_asked_mps:
            self._has_asked_mps, mps = True, self._mps or Mps.begin()
            self._mps = mps if mps is not None and mps.answers() else None
            if self._mps is None:
                self._stop_lanes(devices)
        return self._mps is not None and self._mps.is_alive

    def _may_have_lanes(self, devices: tuple[str, ...]) -> bool:
        return self._cluster.kind(self._cluster.device(devices[0]).kind).mps

    def _prepare_lanes(self, devices: tuple[str, ...], count: int) -> None:
        """Start workers that will probably be wanted, and have them import what those that build the tasks do."""
        if count > 1:
            for lane in range(1, count + 1):
                worker = self._worker_for((devices, lane))
                assert isinstance(worker, WorkerProcess)
                worker.preload(PRELOADED)

    def _stop_lanes(self, devices: tuple[str, ...]) -> None:
        """Stop the workers in lanes of these devices that have nothing to do: who has a device for itself for long is
        to have all of its memory."""
        for worker in list(self._workers.values()):
            if worker.lane and not worker.order and set(worker.devices) & set(devices):
                self._stop_worker(worker)

    def _release_worker(self, running: RunningOrder, worker: WorkerHandle) -> None:
        super()._release_worker(running, worker)
        if worker.lane and running.order.purpose == "fingerprint" and self._workers.get(worker.place) is worker:
            assert isinstance(worker, WorkerProcess)
            if max(worker.held_bytes, worker.private_bytes()) > KEPT_BYTES:
                self._stop_worker(worker)

    def _handle_said(self, worker: WorkerHandle, messages: list[dict[str, Any]]) -> None:
        super()._handle_said(worker, messages)
        told = [message["imports"] for message in messages if isinstance(message.get("imports"), list)]
        names = [name for each in told for name in each if isinstance(name, str)]
        for lane in [each for each in self._workers.values() if each.lane and not each.order] if names else ():
            assert isinstance(lane, WorkerProcess)
            for name in names:
                lane.preload(name)

    def _start_worker(self, devices: tuple[str, ...], lane: int = 0) -> WorkerProcess:
        server = self._starts.server if self._starts is not None and len(devices) == 1 and not lane else None
        worker = WorkerProcess(
            devices,
            cluster=self._cluster,
            log=self._log(devices, lane),
            server=server if server and server.is_current else None,
            lane=lane,
            variables=self._mps.environment if lane and self._mps is not None else {},
        )
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        return worker

    def _log(self, devices: tuple[str, ...], lane: int = 0) -> Path:
        which = f"-lane-{lane}" if lane else ""
        return self._home / "logs" / f"worker-{'-'.join(devices).replace(':', '-')}{which}.log"

    def _receive(self, seconds: float) -> Iterable[tuple[WorkerHandle, list[dict[str, Any]] | None]]:
        for key, _ in self._selector.select(seconds):
            worker: WorkerProcess | None = key.data
            if worker is None:
                with contextlib.suppress(OSError):
                    self._ear.recv(1 << 10)
            elif self._workers.get(worker.place) is worker:
                yield worker, worker.receive()

    def _disconnect(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, WorkerProcess)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.channel)
        worker.channel.close()

    def _make_rendezvous(self, order: str, workers: list[WorkerHandle]) -> str:
        self._meetings[order] = make_scratch(self._home, prefix="meeting-")
        return f"file://{self._meetings[order]}/meeting"

    def _remove_rendezvous(self, order: str) -> None:
        if (meeting := self._meetings.pop(order, None)) is not None:
            shutil.rmtree(meeting, ignore_errors=True)
