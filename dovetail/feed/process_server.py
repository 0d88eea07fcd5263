"""A process that unpickles a feed's stages once and forks workers that run them.

It is started anew, not forked: a process that trains has threads, and a fork would copy their locks and not them. It
computes nothing itself, so that it has one thread, and its workers share what it holds, a dataset in memory included.
Started as `python -P -m dovetail.feed.process_server FILE_DESCRIPTOR`.
"""

import array
import contextlib
import ctypes
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import traceback
from typing import Any

from dovetail.feed.stage_chain import ItemRun, RunAbandoned, StageChain
from dovetail.feed.transport import Channel, decode
from dovetail.vocabulary import ProgramError

_PR_SET_PDEATHSIG = 1


class ProcessServer:
    """The server as seen by the process that reads the feed. Its methods may be called from any thread."""

    def __init__(self, pickled: bytes) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = Channel.pair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dovetail.feed.process_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._channel.send((list(sys.path), os.getcwd(), pickled))
        self._ready: bool | None = None

    def fork(self) -> tuple[int, Channel]:
        """A new worker: its process's number and a channel to it. Waits until the server has imported what it needs.
        Raises `ProgramError` where the stages cannot be unpickled there."""
        with self._lock:
            try:
                if self._ready is None:
                    why = self._channel.receive()
                    self._ready = not why
                    if why:
                        raise ProgramError(why)
                ours, theirs = Channel.pair()
                with theirs:
                    self._channel.send("fork")
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
                    self._channel._socket.sendmsg([b"d"], rights)
                return int(self._channel.receive()), ours
            except (EOFError, OSError) as error:
                raise ProgramError(
                    f"the process that forks a feed's workers must stay alive; it ended with code "
                    f"{self._process.wait()}. A module that the stages import may have ended it."
                ) from error

    def close(self) -> None:
        """End it and all its workers."""
        self._channel.shut()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._channel.close()


def _serve(channel: Channel) -> None:
    path, folder, pickled = channel.receive()
    sys.path[:] = path
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        import cloudpickle  # noqa: F401  # what it has pickled by value refers to it

        chain: StageChain = decode(pickled, ())
    except BaseException as error:
        channel.send(
            f"a stage of a feed must be importable where its workers run; unpickling it raised "
            f"{type(error).__name__}: {error}."
        )
        return
    channel.send("")
    gc.collect()
    gc.freeze()  # what was imported stays, and its pages are shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that end leave nothing behind
    while True:
        try:
            channel.receive()
            _, (descriptor,), _, _ = socket.recv_fds(channel._socket, 1, 1)
        except (EOFError, OSError):
            return
        parent, pid = os.getpid(), os.fork()
        if not pid:
            _be_worker(chain, Channel(socket.socket(fileno=descriptor)), channel, parent)
        os.close(descriptor)
        channel.send(pid)


def _be_worker(chain: StageChain, channel: Channel, server: Channel, parent: int) -> None:
    """What a forked worker does until its channel ends; never returns."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        server.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked us to work says when it ends
        random.seed(0)
        _work(chain, channel)
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _work(chain: StageChain, channel: Channel) -> None:
    import torch

    torch.set_num_threads(1)
    waiting: list[tuple[Any, Any]] = []

    def heard() -> tuple[Any, Any]:
        message, buffers = channel.receive_encoded()
        return message, buffers

    while True:
        message, buffers = waiting.pop(0) if waiting else heard()
        items, first, last, granted, counts_cpu = decode(message, buffers)

        def grow(held: int, count: int) -> None:
            nonlocal granted
            if held <= granted:
                return
            channel.send(("grow", held, count))
            while True:
                found = heard()
                answer = decode(*found)
                if not isinstance(answer, int):
                    waiting.append(found)  # the next items, sent ahead
                elif answer < 0:
                    raise RunAbandoned
                else:
                    granted = answer
                    return

        try:
            work = chain.run(items, first, last, owns_generators=True, grow=grow, counts_cpu=counts_cpu)
        except RunAbandoned:
            channel.send(("abandoned",))
            continue
        _answer(channel, items, work, chain.drawing)


def _answer(channel: Channel, items: ItemRun, work: Any, drawing: Any) -> None:
    try:
        channel.send(("done", items, work, drawing, channel.without_memory))
    except OSError:
        raise
    except Exception as error:
        channel.send(("unsendable", f"{type(error).__name__}: {error}"))


def main() -> None:
    """Run a server: the entry point of its process."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    del sys.argv[1:]
    _serve(channel)
    os._exit(0)


if __name__ == "__main__":
    main()
