"""Where a feed's worker processes come from.

They are forked, for to import torch takes seconds, but not from the process that reads the feed: that one has threads,
and a fork would copy their locks and not them. A root server is started anew, once for all feeds of a process, and
imports what every feed needs. For each feed it forks a server, which unpickles the feed's stages, and for each worker
that forks a worker, so that workers share what they hold, a dataset in memory included. Root server and servers compute
nothing and have one thread. All of them end with the process that reads.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.feeds.stage_chain import ItemRun, RunAbandoned, StageChain
from dovetail.feeds.transport import Channel
from dovetail.feeds.travel import unpack
from dovetail.vocabulary import ProgramError

_PR_SET_PDEATHSIG = 1
_NURSERY = "from dovetail.feeds.process_server import main; main()"
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class _RootServer:
    """The process that forks servers, as seen by the process that reads feeds."""

    _lock = threading.Lock()
    _only: "_RootServer | None" = None

    def __init__(self) -> None:
        self._channel, theirs = Channel.pair()
        self._pid = os.getpid()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _NURSERY, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_SINGLE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    @classmethod
    def start(cls) -> None:
        """Start it, unless it runs; does not wait for what it imports."""
        with cls._lock:
            cls._ensure_started()

    @classmethod
    def fork(cls) -> tuple[int, Channel]:
        """Fork a new server; gives its process number and the channel to it."""
        with cls._lock:
            return _fork_through(cls._ensure_started()._channel)

    @classmethod
    def _ensure_started(cls) -> "_RootServer":
        if cls._only is None or cls._only._pid != os.getpid() or cls._only._process.poll() is not None:
            cls._only = cls()
            atexit.register(cls._only.close)
        return cls._only

    def close(self) -> None:
        """End it, and with it all servers and workers."""
        if self._pid == os.getpid():
            self._channel.close()
            self._process.kill()
            self._process.wait()


def prepare_processes() -> None:
    """Begin to import what worker processes need, for whoever knows that a feed will have some; returns at once."""
    _RootServer.start()


class ProcessServer:
    """The server of one feed, as seen by the process that reads it. Its methods may be called from any thread. `path`
    is where modules are imported from there; as here, unless it is given."""

    def __init__(self, pickled: bytes, *, path: Sequence[str] | None = None) -> None:
        self._lock, self._pickled = threading.Lock(), pickled
        self._path = list(sys.path if path is None else path)
        self._channel: Channel | None = None
        self._closed = False
        self.pid = 0
        self.forks_nothing = False
        """Whether the stages start threads as they are unpickled, of which a fork would have none."""

    def fork(self) -> tuple[int, Channel]:
        """A new worker: its process's number and a channel to it. Waits until the server has imported what it needs.
        Raises `ProgramError` where the stages cannot be unpickled there, or it has ended."""
        with self._lock:
            try:
                if self._channel is None:
                    self._begin()
                assert self._channel is not None
                return self._start_alone() if self.forks_nothing else _fork_through(self._channel)
            except (EOFError, OSError) as error:
                raise ProgramError(
                    "the process that forks a feed's workers must stay alive; it has ended. A module that the stages "
                    "import may have ended it, or the system, for lack of memory."
                ) from error

    def _begin(self) -> None:
        self.pid, channel = _RootServer.fork()
        if self._closed:
            channel.close()
            raise EOFError
        self._channel = channel
        self.forks_nothing = _send_stages(channel, self._pickled, self._path, forks=True) > 1

    def _start_alone(self) -> tuple[int, Channel]:
        """A worker that unpickles the stages itself: a fork would lack the threads that they start."""
        pid, channel = _RootServer.fork()
        try:
            _send_stages(channel, self._pickled, self._path, forks=False)
        except BaseException:
            channel.close()
            raise
        return pid, channel

    def close(self) -> None:
        """End this server and all the workers that it forked."""
        self._closed = True
        if self._channel is None:
            return
        self._channel.shut()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with self._lock:
            self._channel.close()


def _send_stages(channel: Channel, pickled: bytes, path: list[str], *, forks: bool) -> int:
    """Have a process unpickle stages; gives how many threads it has then."""
    channel.send((path, os.getcwd(), dict(os.environ), pickled, forks))
    threads, why = channel.receive()
    if why:
        raise ProgramError(why)
    return int(threads)


def _fork_through(channel: Channel) -> tuple[int, Channel]:
    """Let the process at the other end fork; gives the number of what it has forked, and a channel to that."""
    ours, theirs = Channel.pair()
    try:
        with theirs:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
            channel.socket.sendmsg([b"f"], rights)
        return int(channel.receive()), ours
    except BaseException:
        ours.close()
        raise


def _fork_on_demand(channel: Channel, become: Callable[[Channel], None]) -> None:
    """Fork whenever the other end asks, until it is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whatever was forked leaves nothing behind when it ends
    while True:
        try:
            asked, descriptors, _, _ = socket.recv_fds(channel.socket, 1, 1)
        except OSError:
            return
        if not asked:
            return
        parent, pid = os.getpid(), os.fork()
        if not pid:
            _be_child(become, Channel(socket.socket(fileno=descriptors[0])), channel, parent)
        os.close(descriptors[0])
        channel.send(pid)


def _be_child(become: Callable[[Channel], None], channel: Channel, of_parent: Channel, parent: int) -> None:
    """What a forked process does until its channel ends; never returns."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        of_parent.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked us to work says when it ends
        become(channel)
        os._exit(0)
    except (EOFError, ConnectionError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _serve(channel: Channel) -> None:
    """Be the server of one feed, or a worker that no server can fork."""
    path, folder, environment, pickled, forks = channel.receive()
    sys.path[:] = path
    os.environ.update({**environment, **_SINGLE})
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        chain = unpack(pickled)
    except BaseException as error:
        why = (
            f"a stage of a feed must be importable where its workers run; unpickling it raised "
            f"{type(error).__name__}: {error}."
        )
        channel.send((0, why))
        return
    channel.send((len(os.listdir("/proc/self/task")), ""))
    if not forks:
        _work(chain, channel)
    gc.collect()
    gc.freeze()  # what was imported stays, and its pages are shared
    _fork_on_demand(channel, lambda worker: _work(chain, worker))


def _work(chain: StageChain, channel: Channel) -> None:
    """Be a worker: run the stages for the units that come."""
    import torch

    torch.set_num_threads(1)
    waiting: list[Any] = []  # units that were sent ahead
    while True:
        try:
            fields, first, last, granted, counts_cpu = waiting.pop(0) if waiting else channel.receive()
        except (EOFError, OSError):
            raise
        except Exception as error:
            channel.send(("unsendable", f"{type(error).__name__}: {error}"))
            continue
        items = ItemRun(*fields)
        grow = _Granted(channel, waiting, granted)
        try:
            work = chain.run(items, first, last, owns_generators=True, grow=grow, counts_cpu=counts_cpu)
        except RunAbandoned:
            channel.send(("abandoned",))
            continue
        _answer(channel, items, work, chain.drawing)


class _Granted:
    """How many bytes a unit may hold, as the process that reads has said; it is asked where they are too few."""

    def __init__(self, channel: Channel, waiting: list[Any], granted: int) -> None:
        self._channel, self._waiting, self._granted = channel, waiting, granted

    def __call__(self, held_bytes: int, items: int) -> None:
        if held_bytes <= self._granted:
            return
        self._channel.send(("grow", held_bytes, items))
        while not isinstance(answer := self._channel.receive(), int):
            self._waiting.append(answer)
        if answer < 0:
            raise RunAbandoned
        self._granted = answer


def _answer(channel: Channel, items: ItemRun, work: Any, drawing: Any) -> None:
    try:
        done = [each.as_tuple() for each in work]
        channel.send(("done", items.as_tuple(), done, drawing, channel.without_memory))
    except OSError:
        raise
    except Exception as error:
        channel.send(("unsendable", f"{type(error).__name__}: {error}"))


def main() -> None:
    """Run a root server: the entry point of its process."""
    import cloudpickle  # noqa: F401  # what it has pickled by value refers to it

    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    del sys.argv[1:]
    gc.freeze()
    _fork_on_demand(channel, _serve)
    os._exit(0)
