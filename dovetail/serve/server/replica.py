"""One copy of a model in a process of its own, which is asked over a pipe."""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy

from dovetail.engines.worker import die_with_parent
from dovetail.vocabulary import DovetailError

_START_SECONDS = 120.0


class Answering(Protocol):
    """A model that is loaded: arrays in, scores out."""

    def answer(self, arrays: Sequence[numpy.ndarray]) -> numpy.ndarray:
        """A row of scores for each row."""


class ReplicaLost(DovetailError):
    """The process of a replica has ended, or answers no more.

    >>> issubclass(ReplicaLost, DovetailError)
    True
    """


class Replica:
    """A process that has loaded a model by `load`, which must travel to it. One thread asks it at a time."""

    def __init__(self, load: Callable[[], Answering], *, threads: int = 1) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self.process = spawning.Process(target=_run, args=(theirs, load, threads), daemon=True)
        self.process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Return when the model is loaded. Raises `DovetailError` with the reason where it could not be."""
        kind, value = self._receive(_START_SECONDS)
        if kind == "failed":
            raise DovetailError(value)

    def ask(self, arrays: Sequence[numpy.ndarray], *, within: float) -> tuple[numpy.ndarray, float]:
        """What it answers, and the seconds that it computed. Raises `DovetailError` where the model refused the rows,
        `ReplicaLost` where nothing came within the time."""
        try:
            self._pipe.send(list(arrays))
        except OSError as error:
            raise ReplicaLost(f"a replica's process has ended: {error}") from error
        kind, value = self._receive(within)
        if kind == "failed":
            raise DovetailError(value)
        answers, seconds = value
        return answers, seconds

    def _receive(self, within: float) -> tuple[str, Any]:
        try:
            if not self._pipe.poll(within):
                raise ReplicaLost(f"a replica has not answered within {within:.3g} s")
            found: tuple[str, Any] = self._pipe.recv()
            return found
        except (EOFError, OSError) as error:
            raise ReplicaLost(f"a replica's process has ended with {self.process.exitcode}: {error}") from error

    def stop(self) -> None:
        """End its process."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self.process.kill()
        self.process.join()


def _run(pipe: Connection, load: Callable[[], Answering], threads: int) -> None:
    """In the process: load, then answer until the other end is closed."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the server stops this one after the last answer
    import torch

    torch.set_num_threads(threads)
    try:
        model = load()
    except Exception as error:
        pipe.send(("failed", f"a model must be loaded to be served; found: {type(error).__name__}: {error}"))
        return
    pipe.send(("ready", None))
    with contextlib.suppress(EOFError, OSError):
        while True:
            arrays = pipe.recv()
            began = time.perf_counter()
            try:
                answers = model.answer(arrays)
            except Exception as error:
                pipe.send(("failed", f"the model refused these rows: {type(error).__name__}: {error}"))
                continue
            pipe.send(("answered", (answers, time.perf_counter() - began)))
