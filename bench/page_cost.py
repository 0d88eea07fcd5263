"""What open pages cost a run: a sweep of steps of 5 ms, with ten pages open on it and with none, by turns.

`python bench/page_cost.py [--pages 10] [--turns 24] [--seconds 5] [--quick] [--check]`

The sweep is real, on every core, and computes all the time; the page's server is the real command, on the same cores. A
page is what it is to the server: the snapshot, then a connection on which it hears every change, read by one process
that draws nothing, since browsers draw on the machine of whoever looks. Short turns with and without alternate, each
kind first every other time, so that what else a machine does falls on both; compared are the steps that were done in
each pair of turns, and the middle of the ratios counts.
"""

import argparse
import http.client
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import psutil
from page_load import serve
from reporting import Bar, finish

from dovetail.store import Store
from dovetail.vocabulary import StoreError

MOST_SLOWER = 0.01
SETTLE_SECONDS = 1.5
PROGRAM = """
import time

import torch

import dovetail as dt


def busy(number=0):
    model = torch.nn.Linear(1, 1)

    def loss(model, batch):
        end = time.thread_time() + 0.005  # so much work, however long it takes
        while time.thread_time() < end:
            pass
        return model(batch).square().mean()

    return dt.Training(
        model=model, batches=[torch.ones(4, 1)], loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


workload = dt.grid(busy, number=range(TASKS), steps=10_000_000)
"""


class Visitors:
    """So many pages, open until closed."""

    def __init__(self, address: str, count: int) -> None:
        parts = urllib.parse.urlsplit(address)
        self._host, self._open = parts.netloc, True
        connection = http.client.HTTPConnection(self._host, timeout=60)
        connection.request("GET", f"/?{parts.query}")
        self._cookie = {"cookie": (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]}
        self._threads = [threading.Thread(target=self._watch, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _watch(self) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        connection.request("GET", "/api/0/snapshot", headers=self._cookie)
        connection.getresponse().read()
        connection.request("GET", "/api/0/events?after=", headers=self._cookie)
        answer = connection.getresponse()
        while self._open and answer.read1(1 << 16):
            pass
        connection.close()

    def close(self) -> None:
        """Leave."""
        self._open = False
        for thread in self._threads:
            thread.join()


def steps_done(home: Path) -> int:
    """How many steps all tasks have done so far, as their points say."""
    with Store(home) as store:
        tasks = [identity for _, identity, *_ in store.rows("tasks")]
        return sum(max((each.last_step for each in store.summarise_points(task)), default=0) for task in tasks)


def begin(folder: Path) -> "subprocess.Popen[bytes]":
    """The sweep, once all its tasks train."""
    (folder / "sweep.py").write_text(PROGRAM.replace("TASKS", str(os.cpu_count())))
    words = [sys.executable, "-m", "dovetail", "run", "sweep.py", "--quiet", "--techniques", "resident"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    due = time.monotonic() + 180
    while time.monotonic() < due:
        try:
            if steps_done(folder / ".dovetail") > 200 * (os.cpu_count() or 1):
                return process
        except StoreError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"the sweep must train; {(folder / 'log').read_text()}")


def turn(home: Path, seconds: float) -> float:
    """Steps a second of all tasks together, over so many seconds."""
    first, began = steps_done(home), time.monotonic()
    time.sleep(seconds)
    return (steps_done(home) - first) / (time.monotonic() - began)


def measure(pages: int, turns: int, seconds: float) -> tuple[list[dict[str, float]], float]:
    """What came of each pair of turns, and by how much pages slow the sweep down."""
    folder = Path(tempfile.mkdtemp(prefix="page-cost-"))
    process = begin(folder)
    server, address = serve(folder / ".dovetail")
    watched = psutil.Process(server.pid)
    try:
        rows = [_pair(folder / ".dovetail", address, watched, pages, number, seconds) for number in range(turns)]
    finally:
        for each in (server, process):
            each.terminate()
            each.wait()
        shutil.rmtree(folder)
    return rows, 1 - statistics.median(row["with_pages"] / row["without"] for row in rows)


def _pair(
    home: Path, address: str, server: psutil.Process, pages: int, number: int, seconds: float
) -> dict[str, float]:
    found: dict[str, float] = {"turn": number + 1}
    for kind in ("without", "with_pages") if number % 2 else ("with_pages", "without"):
        visitors = Visitors(address, pages if kind == "with_pages" else 0)
        time.sleep(SETTLE_SECONDS)  # what opening a page takes is taken once
        before = server.cpu_times()
        found[kind] = turn(home, seconds)
        after = server.cpu_times()
        visitors.close()
        if kind == "with_pages":
            found["server_share_of_a_core"] = (after.user + after.system - before.user - before.system) / seconds
    return found


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    turns, seconds = (2, 2.0) if chosen.quick else (chosen.turns, chosen.seconds)
    rows, slower = measure(chosen.pages, turns, seconds)
    bars = [Bar(f"{chosen.pages} pages, share by which training is slower", slower, most=MOST_SLOWER)]
    rows = [_middle(rows)]
    return finish("page_cost", rows, bars, check=chosen.check, quick=chosen.quick)


def _middle(rows: list[dict[str, float]]) -> dict[str, float]:
    """The pairs in one row: the middle of each figure, and of the ratios their quartiles."""
    ratios = sorted(row["with_pages"] / row["without"] for row in rows)
    names = ("without", "with_pages", "server_share_of_a_core")
    found = {name: statistics.median(row[name] for row in rows) for name in names}
    quartiles = {"ratio_low": ratios[len(ratios) // 4], "ratio_high": ratios[-1 - len(ratios) // 4]}
    return {"pairs": len(rows), **found, **quartiles}


if __name__ == "__main__":
    sys.exit(main())
