"""Workers that no engine has just now: kept from one run to the next, or started before it is known what they will do.
Those import torch while somebody reads the workload, and what that imports from installed packages, for the programs
most often import it too. Where several can compute on one device there are some more for that. Only time depends on
them. One that is dead by the time it is wanted, or whose libraries might have been set up otherwise by what reading
changed, is let go, and its engine starts another.
"""

import contextlib
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

from dovetail.describe.installed import is_installed
from dovetail.engines.fork_server import ForkServer, can_fork
from dovetail.engines.imports import ImportTeller
from dovetail.engines.mps import Mps
from dovetail.engines.processes import WorkerProcess
from dovetail.vocabulary import Cluster

# Each takes some 200 MB and the time of a core for seconds, and a small workload may want none.
_MOST = 4
# Of a node's cores one worker in a lane is started for so many: they import while the others do.
_CORES_A_LANE = 3


class Spares:
    """One worker for each device of this machine, up to four, or where it has no accelerators a `server` that forks
    them. Whoever makes them closes them. Those that are `lasting` start none by themselves, and are given back by the
    engine that took them.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> with contextlib.closing(Spares(cluster)) as spares:
    ...     for worker in spares.take(cluster):
    ...         spares.give(worker)
    ...     [worker.devices for worker in spares.workers]
    [('n0:0',), ('n0:1',)]
    """

    def __init__(self, cluster: Cluster, *, lasting: bool = False) -> None:
        self.cluster, self.lasting, self._paths = cluster, lasting, set(sys.path)
        self.workers: list[WorkerProcess] = []
        self.server: ForkServer | None = None
        self._mps: Mps | None = None
        devices = cluster.devices[: 0 if lasting else _MOST]
        # Where no process can be started, the engine says so when it needs one.
        with contextlib.suppress(OSError):
            if devices and can_fork() and all(kind.processor == "cpu" for kind in cluster.kinds):
                self.server = ForkServer(cluster)
            else:
                self.workers += (WorkerProcess((device.name,), cluster=cluster) for device in devices)
                self._start_lanes(len(devices))

    @contextlib.contextmanager
    def importing_along(self) -> Iterator[None]:
        """Within this context the spare workers import whatever this process imports from installed packages. Variables
        that those set as they are imported they set there, too."""
        told: list[WorkerProcess | ForkServer] = [*self.workers, *([self.server] if self.server else [])]
        names, putenv = set[str](), os.putenv

        def tell(name: str) -> None:
            for each in told:
                each.preload(name)

        finder = ImportTeller(tell)

        def note(name: Any, value: Any) -> None:
            if _is_set_by_import(sys._getframe(1)):
                names.add(os.fsdecode(name))
            putenv(name, value)

        sys.meta_path.insert(0, finder)
        os.putenv = note
        try:
            yield
        finally:
            os.putenv = putenv
            sys.meta_path.remove(finder)
            for each in told:
                each.origin.harmless |= names

    def take(self, cluster: Cluster) -> list[WorkerProcess]:
        """Hand over the workers that can serve an engine of this cluster as things are now; the others are stopped."""
        names = [[device.name for device in each.devices] for each in (cluster, self.cluster)]
        same = names[0] == names[1] and not _is_shadowing(self._paths)
        if self.server is not None and not (same and self.server.is_current):
            self.close()
        if (server := self.server) is not None:
            self.workers += (
                WorkerProcess((each.name,), cluster=cluster, server=server) for each in cluster.devices[:_MOST]
            )
        taken = [worker for worker in self.workers if same and worker.is_current]
        self.workers = [worker for worker in self.workers if worker not in taken]
        self._stop_workers()
        return taken

    def take_mps(self) -> Mps | None:
        """Hand over the service that workers in lanes were started for, if there are such."""
        mps, self._mps = self._mps, None
        return mps

    def give(self, worker: WorkerProcess) -> None:
        """Keep a worker that has nothing to do for the next engine."""
        self.workers.append(worker)

    def close(self) -> None:
        """Stop the server and the workers that nobody took. May be called twice."""
        self._stop_workers()
        if self._mps is not None:
            self._mps.close()
            self._mps = None
        if self.server is not None:
            self.server.close()
            self.server = None

    def _start_lanes(self, devices: int) -> None:
        """Beside the worker of a machine's only device, some that can compute there at the same moment."""
        cluster = self.cluster
        if devices == 1 and cluster.kind(cluster.devices[0].kind).mps and (mps := Mps.begin()) is not None:
            self._mps, count = mps, min(_MOST, cluster.node(cluster.devices[0].node).cores // _CORES_A_LANE)
            for lane in range(1, count + 1):
                name = cluster.devices[0].name
                self.workers.append(WorkerProcess((name,), cluster=cluster, lane=lane, variables=mps.environment))

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.kill("nobody had work for it")
            worker.exited(10)
            worker.channel.close()
        self.workers.clear()


def _is_set_by_import(frame: types.FrameType | None) -> bool:
    """Whether an installed package is being imported here, and no code of the user's called what runs now."""
    while frame is not None and is_installed(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    return tuple(dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib")))


def _is_shadowing(paths: set[str]) -> bool:
    """Whether a module was imported from a folder that is none of these and stands before an installed one of its name,
    which others, without that folder, may have imported instead."""
    for name, module in list(sys.modules.items()):
        folder = os.path.dirname(getattr(module, "__file__", None) or "")
        if "." in name or not {folder, os.path.dirname(folder)} & set(sys.path) - paths:
            continue
        if any(os.path.exists(os.path.join(each, name + end)) for each in _installed_folders() for end in ("", ".py")):
            return True
    return False
