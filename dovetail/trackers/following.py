"""Follows a store for one tracker, for as long as somebody wants it: looks, sends, rests, and tries again where the
tracker does not answer."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from dovetail.store import Store
from dovetail.trackers.addresses import TrackerAddress
from dovetail.trackers.cursor import TrackerCursor
from dovetail.trackers.sender import TrackerSender
from dovetail.trackers.store_runs import StoreRuns
from dovetail.vocabulary import StoreBusy, StoreError
from dovetail.vocabulary.redact import Redactor

# How often the store is looked at. Where all cores are busy, less often: sending takes this part of one core's time.
LOOK_SECONDS, BUSY_SHARE = 5.0, 0.005
# How long to wait for a store that is just being made, or for another process that sends to the same tracker.
WAIT_SECONDS = 0.5
# After a failure the tracker is tried again this much later, and after each further one twice as much later, at most.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


@contextlib.contextmanager
def open_sender(
    address: TrackerAddress, home: Path, *, workload: str | None = None, models: bool = False
) -> Iterator[tuple[TrackerSender, TrackerCursor]]:
    """What sends a store to a tracker, closed afterwards. Raises `StoreBusy` where another process does, `StoreError`
    where there is no store, and whatever the tracker raises where it cannot be reached."""
    with Store(home) as store, contextlib.ExitStack() as stack:
        cursor = TrackerCursor(home, address.kind, address.place)
        stack.callback(cursor.close)
        try:
            tracker = address.connect()
        except Exception as error:
            cursor.note_trouble(describe(error))
            raise
        stack.callback(tracker.close)
        runs = StoreRuns(store, owner=cursor.store, workload=workload)
        yield TrackerSender(runs, tracker, cursor, home=home, models=models), cursor


def follow(
    address: TrackerAddress,
    home: Path,
    *,
    ending: threading.Event,
    workload: str | None = None,
    models: bool = False,
) -> None:
    """Send what is new, again and again, until `ending` is set and all has been sent."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            with open_sender(address, home, workload=workload, models=models) as (sender, cursor):
                pause = FIRST_PAUSE_SECONDS
                _send_on(sender, cursor, ending)
                return
        except (StoreBusy, StoreError):
            if ending.is_set() and not (home / "store.sqlite").exists():
                return
            time.sleep(WAIT_SECONDS)
        except Exception as error:  # a tracker that cannot be reached yet may raise anything
            tell(f"{address.given}: {describe(error)}")
            _pause(ending, pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _send_on(sender: TrackerSender, cursor: TrackerCursor, ending: threading.Event) -> None:
    pause, trouble = FIRST_PAUSE_SECONDS, ""
    while True:
        is_last = ending.is_set()  # asked first: what came before is in the store by now
        began = _computed_seconds()
        errors = sender.send_new()
        found = "; ".join([*dict.fromkeys(map(describe, errors)), *sender.modelless])
        if found != trouble:
            trouble = found
            cursor.note_trouble(trouble)
            tell(trouble or "sent again")
        if is_last and not errors:
            return
        _pause(ending, pause if errors else _look_pause(_computed_seconds() - began))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if errors else FIRST_PAUSE_SECONDS


def _look_pause(computed_seconds: float) -> float:
    """How long to leave the cores to others after having computed for so long."""
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1) - 0.5
    return max(LOOK_SECONDS, computed_seconds / BUSY_SHARE if is_busy else 0.0)


def _computed_seconds() -> float:
    """What this process and those that its tracker has started have computed so far."""
    own = psutil.Process()
    times = [own.cpu_times()]
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times.append(child.cpu_times())
    return float(sum(each.user + each.system for each in times))


def _pause(ending: threading.Event, seconds: float) -> None:
    """Wait; who is told to end waits no longer than it must, lest it asks a tracker that is down without a pause."""
    if not ending.is_set():
        ending.wait(seconds)
    else:
        time.sleep(min(seconds, FIRST_PAUSE_SECONDS))


def describe(error: Exception) -> str:
    """What went wrong, in one line without secrets."""
    return Redactor(variables=os.environ)(f"{type(error).__name__}: {error}".splitlines()[0][:500])


def tell(text: str) -> None:
    """Write a line to the tracker's log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
