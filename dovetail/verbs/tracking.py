"""Trackers beside a run, each in a process of its own: started, started again where it dies, and waited for at the end,
for a while. Nothing here can hold up training: the controller never talks to them."""

import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.store import Store
from dovetail.trackers import TrackerAddress
from dovetail.trackers.cursor import cursor_path, read_cursor
from dovetail.trackers.following import describe, open_sender
from dovetail.trackers.sender import count_unsent
from dovetail.trackers.store_runs import StoreRuns
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.redact import Redactor

if TYPE_CHECKING:
    from dovetail.verbs.console import Console

# How long a run that has ended waits for its trackers.
WAIT_SECONDS = 30.0
# After so long a wait the user is told what for.
SILENT_SECONDS = 2.0
# One that dies is started again this much later, and after each further time twice as much later, at most.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 300.0


class TrackerProcess:
    """One tracker's process, watched by a thread of its own until it is ended."""

    def __init__(self, address: TrackerAddress, home: Path, *, workload: str | None, models: bool) -> None:
        self.address, self.home, self.workload = address, home, workload
        order: dict[str, Any] = {**dataclasses.asdict(address), "given": _shown(address)}
        order |= {"home": str(home.absolute()), "workload": workload, "models": models}
        self._order = order
        self._ending = threading.Event()
        self._killed = self._is_done = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"tracker {address.kind}")
        self._thread.start()

    def end(self) -> None:
        """Ask it to send what is left and end."""
        with self._lock:
            self._ending.set()
            self._close_input()

    def hurry(self) -> None:
        """Have another process send the rest, at the priority of others: training is over, and a process cannot take
        its niceness back."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time, with all sent."""
        self._thread.join(max(0.0, seconds))
        return self._is_done

    def kill(self) -> None:
        """End it now; what it has not sent is sent by the next."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def _watch(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._killed:
            with contextlib.suppress(OSError):  # of no more processes, or a disk that is full, as of one that has died
                if self._start().wait() == 0:
                    self._is_done = True
                    return
            if not self._ending.wait(pause):
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            elif not self._killed:
                time.sleep(FIRST_PAUSE_SECONDS / 4)

    def _start(self) -> "subprocess.Popen[bytes]":
        log = cursor_path(self.home, self.address.kind, self.address.place).with_suffix(".log")
        log.parent.mkdir(mode=0o700, exist_ok=True)
        words = [sys.executable, "-P", "-m", "dovetail.trackers.tracking_process"]
        with open(log, "ab") as file, self._lock:
            # In a session of its own: Ctrl-C is sent to all of a run's, and priorities are given by session.
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True, bufsize=0
            )
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                order = {**self._order, "polite": not self._ending.is_set()}
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
            if self._killed:
                self._process.kill()
            elif self._ending.is_set():
                self._close_input()
            return self._process

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


@contextlib.contextmanager
def trackers_beside(
    addresses: Sequence[TrackerAddress], *, home: Path, workload: str | None = None, models: bool = False
) -> Iterator[None]:
    """Have these trackers follow the store at `home` within; afterwards they are waited for, for a while, and what is
    not sent by then is told, with the command that sends it."""
    processes = [TrackerProcess(each, home, workload=workload, models=models) for each in addresses]
    try:
        yield
    except KeyboardInterrupt:  # a second one: at once
        for each in processes:
            each.kill()
        raise
    except BaseException:
        _end_all(processes)
        raise
    _end_all(processes)


def send_now(
    address: TrackerAddress, home: Path, *, workload: str | None = None, models: bool = False, console: "Console"
) -> str:
    """Send a tracker what it has not been sent, with a bar where that takes a while; what came of it, in words. Raises
    `DovetailError` where not all can be sent."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    try:
        with Store(home) as store, Progress(*columns, console=console, transient=True) as bars:
            with open_sender(address, home, workload=workload, models=models) as (sender, cursor):
                total = count_unsent(StoreRuns(store, owner=cursor.store, workload=workload), cursor.runs)
                bar = bars.add_task(_shown(address), total=total)
                errors = sender.send_new(progress=lambda sent: bars.update(bar, completed=sent))
                trouble = [*dict.fromkeys(map(describe, errors)), *sender.modelless]
                cursor.note_trouble("; ".join(trouble))
            count = sender.sent_points
    except DovetailError:
        raise
    except Exception as error:  # a tracker is somebody else's, and may raise anything
        raise DovetailError(f"{_shown(address)} must take what it is sent; found: {describe(error)}.") from error
    if trouble:
        raise DovetailError(f"{_shown(address)} must take what it is sent; found: {'; '.join(trouble)}.")
    return f"{count:,} new points sent to {_shown(address)}"


def _end_all(processes: Sequence[TrackerProcess]) -> None:
    from dovetail.verbs.console import Console, plain  # rich takes a tenth of a second to import

    due, console = time.monotonic() + WAIT_SECONDS, Console(stderr=True)
    try:
        for each in processes:
            each.end()
        for each in processes:
            if not each.wait(min(SILENT_SECONDS, due - time.monotonic())):
                console.print(plain(f"sending what is left to {_shown(each.address)}"), soft_wrap=True)
                each.hurry()
        for each in processes:
            each.wait(due - time.monotonic())
    finally:
        for each in processes:
            is_done = each.wait(0.0)
            each.kill()
            if said := _tell_unsent(each, is_done=is_done):
                console.print(plain(said), soft_wrap=True)


def _tell_unsent(each: TrackerProcess, *, is_done: bool) -> str:
    """What a tracker was not sent, why, and how to send it; empty where all is well."""
    address, home = each.address, each.home
    try:
        owner, sent, trouble = read_cursor(home, address.kind, address.place)
        if is_done:
            return f"{_shown(address)}: {trouble}" if trouble else ""
        with Store(home) as store:
            count = count_unsent(StoreRuns(store, owner=owner, workload=each.workload), sent)
    except DovetailError as error:
        return f"{_shown(address)}: {error}"
    what = f"{count:,} points are" if count else "how tasks ended is"
    why = f" ({trouble})" if trouble else ""
    command = f"dovetail track {shlex.quote(_shown(address))} --store {shlex.quote(str(home))}"
    return f"{what} not sent to {_shown(address)} yet{why}; send it: {command}"


def _shown(address: TrackerAddress) -> str:
    return Redactor(variables=os.environ)(address.given)
