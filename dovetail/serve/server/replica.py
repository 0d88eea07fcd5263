"""One copy of a model in a process of its own, which is asked over a pipe."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy

from dovetail.engines.worker import die_with_parent
from dovetail.vocabulary import DovetailError

_START_SECONDS = 120.0
# What is sent at once: more could fill the pipe, and whoever waits for room there answers nobody meanwhile.
_SENT_AT_ONCE = 64 << 10
# How far a replica steps back for the process that reads requests, where both want the same core: that one needs a
# fraction of a millisecond for a request, refuses what is too much, and must not wait for whoever computes.
_NICENESS = 5


class Answering(Protocol):
    """A model that is loaded: arrays in, scores out."""

    def answer(self, arrays: Sequence[numpy.ndarray]) -> numpy.ndarray:
        """A row of scores for each row."""

    @property
    def stages(self) -> numpy.ndarray | None:
        """Of a cascade, the number of the stage that answered each row of the last call."""


class Answered(NamedTuple):
    """Scores for each row, and of a cascade the number of the stage that gave them."""

    scores: numpy.ndarray
    stages: numpy.ndarray | None = None

    def part(self, at: int, rows: int) -> "Answered":
        """Some rows that follow one another.

        >>> Answered(numpy.arange(5)).part(1, 2).scores
        array([1, 2])
        """
        stages = None if self.stages is None else self.stages[at : at + rows]
        return Answered(self.scores[at : at + rows], stages)


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

    def ask(self, arrays: Sequence[numpy.ndarray], *, within: float) -> tuple[Answered, float]:
        """What it answers, and the seconds that it computed. Raises `DovetailError` where the model refused the rows,
        `ReplicaLost` where nothing came within the time."""
        self._send(arrays)
        return _answer(*self._receive(within))

    async def call(self, arrays: Sequence[numpy.ndarray], *, within: float) -> tuple[Answered, float]:
        """The same from an event loop, by its own readiness: a thread for each call would take longer than the rest of
        what a request takes, and wait for the interpreter's lock on its way back."""
        if sum(array.nbytes for array in arrays) > _SENT_AT_ONCE:
            return await asyncio.to_thread(self.ask, arrays, within=within)
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._pipe.fileno(), readable.set)
        try:
            self._send(arrays)
            async with asyncio.timeout(within):
                await readable.wait()
        except TimeoutError:
            raise ReplicaLost(f"a replica has not answered within {within:.3g} s") from None
        finally:
            loop.remove_reader(self._pipe.fileno())
        return _answer(*self._receive(within))

    def _send(self, arrays: Sequence[numpy.ndarray]) -> None:
        try:
            self._pipe.send(list(arrays))
        except OSError as error:
            raise ReplicaLost(f"a replica's process has ended: {error}") from error

    def _receive(self, within: float) -> tuple[str, Any]:
        try:
            if not self._pipe.poll(within):
                raise ReplicaLost(f"a replica has not answered within {within:.3g} s")
            found: tuple[str, Any] = self._pipe.recv()
            return found
        except (EOFError, OSError) as error:
            raise ReplicaLost(f"a replica's process has ended with {self.process.exitcode}: {error}") from error

    def stop(self) -> None:
        """Kill this replica's process and wait until it has ended."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self.process.kill()
        self.process.join()


def freeze_loaded() -> None:
    """Let the garbage collector pass over all that is loaded by now: looking through it takes 200 ms, in which nobody
    is answered, and finds nothing."""
    gc.collect()
    gc.freeze()


def _answer(kind: str, value: Any) -> tuple[Answered, float]:
    if kind == "failed":
        raise DovetailError(value)
    answers, seconds = value
    return answers, seconds


def _run(pipe: Connection, load: Callable[[], Answering], threads: int) -> None:
    """In the process: load, then answer until the other end is closed."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the server stops this one after the last answer
    import torch

    torch.set_num_threads(threads)
    try:
        model = load()
    except DovetailError as error:
        pipe.send(("failed", str(error)))
        return
    except Exception as error:
        pipe.send(("failed", f"a model must be loaded to be served; found: {type(error).__name__}: {error}"))
        return
    freeze_loaded()
    os.nice(_NICENESS)  # not before: on a busy machine it would load for minutes
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
            pipe.send(("answered", (Answered(answers, model.stages), time.perf_counter() - began)))
