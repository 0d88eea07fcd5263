"""The workers of a running feed: threads of this process, and processes of their own, here or on another node, each
with a thread here that hands it units and takes what it gives.

A process that ends or hangs is replaced, and what it had is read again. One on another node is not: what it had, and
what it could not read, is read here. Knows chains and channels; what there is to do it asks of the flow.
"""

import collections
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail.feeds.flow import REMOTE, FeedFlow
from dovetail.feeds.keyed_draws import one_thread
from dovetail.feeds.process_server import ProcessServer
from dovetail.feeds.remote_cores import NoIdleCore, RemoteCores
from dovetail.feeds.stage_chain import ItemRun, RunAbandoned, StageChain, StageWork
from dovetail.feeds.transport import Channel
from dovetail.feeds.units import FeedUnit

# Units that take less are sent ahead, so that a process does not wait for this one's interpreter.
_AHEAD_SECONDS = 0.02
# So many parts of an epoch may fail on another node before it is given up: its disk may lack what is here.
_MOST_REMOTE_FAULTS = 3


_FAULTS = ItemRun.__slots__.index("faults")


class _Charged:
    """Asks for room for a unit only where it holds more than it is charged for: it is called for each item."""

    __slots__ = ("_budget", "_flow", "_unit")

    def __init__(self, flow: FeedFlow, unit: FeedUnit) -> None:
        self._flow, self._unit, self._budget = flow, unit, flow.budget

    def __call__(self, held_bytes: int, items: int) -> None:
        unit = self._unit
        if unit.copies * held_bytes + 2 * self._budget.most_item_bytes > unit.charged_bytes:
            self._flow.grow(unit, held_bytes, items)


class FeedWorkers:
    """Starts workers as the flow says, and ends with it. `note` is told what users should know."""

    def __init__(
        self,
        flow: FeedFlow,
        chain: StageChain,
        *,
        hang_seconds: float,
        counts_cpu: bool,
        note: Callable[[str], None],
        remote: RemoteCores | None = None,
    ) -> None:
        self._flow, self._chain, self._note = flow, chain, note
        self._remote, self._remote_faults = remote, 0
        self._pickled = b""
        self._hang_seconds, self._counts_cpu = hang_seconds, counts_cpu
        self._server: ProcessServer | None = None
        self._threads: list[threading.Thread] = []
        self._channels: dict[int, Channel] = {}  # by process, and by minus a number for those on other nodes
        self._closed = False
        self.pids: set[int] = set()
        """The worker processes that are there."""

    def start(self, pickled: bytes | None) -> None:
        """Start those that are missing; processes need the stages as bytes."""
        self._pickled = pickled or b""
        if self._flow.workers["process"] and self._server is None:
            assert pickled is not None
            self._server = ProcessServer(pickled)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for kind, work in (("thread", self._run_thread), ("process", self._run_process), (REMOTE, self._run_remote)):
            for _ in range(self._flow.claim_missing(kind)):
                thread = threading.Thread(target=self._guard(work), name=f"feed {kind}", daemon=True)
                self._threads.append(thread)
                thread.start()

    @property
    def can_be_remote(self) -> bool:
        """Whether other nodes have not failed to read this feed."""
        return self._remote is not None and self._remote_faults < _MOST_REMOTE_FAULTS

    def close(self) -> None:
        """End all of them. One that is inside a function of the user's ends when that does."""
        self._closed = True
        for channel in list(self._channels.values()):
            channel.shut()
        if self._server is not None:
            self._server.close()
            self._server = None
        deadline = time.monotonic() + 2.0
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _guard(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                if not self._closed:
                    self._flow.fail(error)

        return run

    def _run_thread(self) -> None:
        with one_thread():
            while (unit := self._flow.take("thread")) is not None:
                began, busy = time.perf_counter(), time.thread_time()
                try:
                    work = self._chain.run(
                        unit.items,
                        unit.at,
                        unit.upto,
                        owns_generators=False,
                        grow=_Charged(self._flow, unit),
                        counts_cpu=self._counts_cpu,
                    )
                except RunAbandoned:
                    self._flow.abandon(unit)
                    continue
                seconds, busy = time.perf_counter() - began, time.thread_time() - busy
                reading = sum(done.seconds for done in work[: self._chain.item_stages])
                is_light = self._chain.is_light and 2 * reading > seconds
                self._flow.finish(unit, unit.items, work, is_light=is_light, seconds=seconds, busy_seconds=busy)

    def _run_process(self) -> None:
        server = self._server
        assert server is not None
        while True:
            pid, channel = server.fork()
            if server.forks_nothing:
                self._note(
                    "What the stages need starts threads, which a forked process would lack, so each worker process "
                    "loads it by itself, and takes the longer to start."
                )
            self.pids.add(pid)
            self._channels[pid] = channel
            channel.settimeout(self._hang_seconds)
            try:
                with channel:
                    if self._serve(pid, channel):
                        return
            finally:
                self.pids.discard(pid)
                self._channels.pop(pid, None)
                if self._closed:
                    return  # noqa: B012  # nobody is there to hear of it

    def _run_remote(self) -> None:
        """Borrow a core of another node and hand units to the process there, until it is to end or is taken back."""
        assert self._remote is not None
        number = -threading.get_ident()
        try:
            with self._remote.borrow(self._pickled) as channel:
                self._channels[number] = channel
                channel.settimeout(self._hang_seconds)
                if self._serve(number, channel, kind=REMOTE):
                    return
        except NoIdleCore as why:
            self._note(f"A core of another node could not be borrowed: {str(why).rstrip('.')}.")
            self._remote_faults += _MOST_REMOTE_FAULTS if why.is_lasting else 0
        finally:
            self._channels.pop(number, None)
        self._flow.leave(REMOTE)

    def _serve(self, pid: int, channel: Channel, *, kind: str = "process") -> bool:
        """Hand units to one process until it is to end, which gives True, or ends by itself."""
        sent: collections.deque[FeedUnit] = collections.deque()
        seconds = 0.0
        began = time.perf_counter()
        try:
            while True:
                ahead = 2 if 0 < seconds < _AHEAD_SECONDS or kind == REMOTE else 1
                while len(sent) < ahead:
                    unit = self._flow.take(kind, wait=not sent)
                    if unit is None:
                        if not sent:
                            return True
                        break
                    granted = self._allowed_bytes(unit)
                    sent.append(unit)
                    began = time.perf_counter() if len(sent) == 1 else began
                    channel.send((unit.items.as_tuple(), unit.at, unit.upto, granted, self._counts_cpu))
                if self._hear(channel, sent):
                    now = time.perf_counter()
                    seconds, began = now - began, now
        except (EOFError, ConnectionError, TimeoutError) as error:
            self._replace(pid, sent, hung=isinstance(error, TimeoutError))
            return False

    def _allowed_bytes(self, unit: FeedUnit) -> int:
        return int(max(0, unit.charged_bytes - 2 * self._flow.budget.most_item_bytes) / unit.copies)

    def _hear(self, channel: Channel, sent: "collections.deque[FeedUnit]") -> bool:
        """Take one message of the process; whether its first unit is done with."""
        word, *rest = channel.receive()
        unit = sent[0]
        if word == "grow":
            try:
                channel.send(self._flow.grow(unit, *rest))
            except RunAbandoned:
                channel.send(-1)
            return False
        sent.popleft()
        if word == "abandoned":
            self._flow.abandon(unit)
        elif unit.is_remote and (word == "unsendable" or rest[0][_FAULTS]):
            self._read_here(unit, rest[0] if word == "unsendable" else rest[0][_FAULTS][0].message)
        elif word == "unsendable":
            self._say_unsendable(unit, rest[0])
        else:
            items, work, drawing, without_memory = rest
            self._learn(drawing)
            if without_memory:
                self._note(
                    f"Batches go through a pipe, which is slower than shared memory; the system gave none: "
                    f"{without_memory}."
                )
            self._flow.finish(unit, ItemRun(*items), [StageWork(*each) for each in work])
        return True

    def _read_here(self, unit: FeedUnit, why: str) -> None:
        """A worker on another node could not read a unit, which may be its node's fault: what is found here counts."""
        self._flow.give_back(unit)
        self._note(f"Items that a worker on another node could not read are read here: {why}")
        self._remote_faults += 1
        if self._remote_faults >= _MOST_REMOTE_FAULTS:
            raise ConnectionError("that node cannot read this feed")

    def _learn(self, drawing: list[Any]) -> None:
        for place, draws in enumerate(drawing):
            if draws and self._chain.drawing[place] is None:
                self._chain.drawing[place] = True

    def _say_unsendable(self, unit: FeedUnit, why: str) -> None:
        from dovetail.vocabulary import ProgramError

        names = [stage.name for stage in self._chain.stages[unit.at : unit.upto]]
        self._flow.fail(
            ProgramError(
                f"what a stage in a worker process gives must be picklable; what {names} give is not: {why}. Give "
                f"arrays, tensors or plain data, or run the stage in threads."
            )
        )

    def _replace(self, pid: int, sent: "collections.deque[FeedUnit]", *, hung: bool) -> None:
        """Give back what a lost process had."""
        if self._closed:
            return
        if pid < 0:
            self._note("A core of another node was taken back or is gone; its items are read again.")
            for unit in sent:
                self._flow.give_back(unit)
            return
        if hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        why = f"it said nothing for {self._hang_seconds:g} seconds" if hung else "it was killed, or crashed"
        if sent:
            names = [stage.name for stage in self._chain.stages[sent[0].at : sent[0].upto]]
            self._note(f"A worker process was replaced in the stages {names}: {why}; its items are read again.")
        for number, unit in enumerate(sent):
            self._flow.give_back(unit, why="" if number else why)
