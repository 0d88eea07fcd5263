"""A daemon with thousands of tasks that wait, and clients who submit one task after another all at once: how long each
waits for its answer, and how long a list of everything takes.

`python bench/daemon_load.py [--tasks 5000] [--clients 8] [--requests 50] [--quick] [--check]`

The daemon is the real command, in a process of its own, with workers that train meanwhile; every submission is on disk
before it is answered. Clients ask through the socket as `dt.connect` does.
"""

import argparse
import contextlib
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from nemesis import begin
from reporting import Bar, finish

import dovetail as dt
from dovetail.verbs.client import Client
from dovetail.vocabulary import StoreError

PROGRAM = """
import time

import torch

import dovetail as dt


def line(number=0, learning_rate=0.1):
    model = torch.nn.Linear(1, 1)

    def loss(model, batch):
        time.sleep(0.02)
        return model(batch).square().mean()

    return dt.Training(
        model=model, batches=[torch.ones(4, 1)], loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
    )
"""
STEPS = 1_000_000  # nobody ends meanwhile
BATCH = 500
LISTS = 100
START_SECONDS = 120.0
# Building a task takes a worker some milliseconds.
LEARN_SECONDS = 600.0
SUBMIT_MS, LIST_MS = 100.0, 200.0


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Client]:
    """A daemon on a store in this folder, until the end."""
    home = folder / "store"
    words = [sys.executable, "-m", "dovetail", "daemon", "--store", str(home)]
    process = begin(words, {**os.environ, "OMP_NUM_THREADS": "1"}, folder / "log")
    try:
        yield connected(home, folder / "log")
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        with contextlib.suppress(Exception):
            process.wait(60)
        process.kill()
        process.wait()


def connected(home: Path, log: Path) -> Client:
    """The daemon's client, once there is a daemon."""
    due = time.monotonic() + START_SECONDS
    while time.monotonic() < due:
        with contextlib.suppress(StoreError):
            return dt.connect(home)
        time.sleep(0.1)
    raise AssertionError(f"a daemon must have started within {START_SECONDS:.0f} s: {log.read_text()}")


def workload(program: Path, names: list[str]) -> dt.Workload:
    """One task of each name."""
    tasks = [dt.task(f"{program}:line", name=name, steps=STEPS, number=n) for n, name in enumerate(names)]
    return dt.workload(tasks, name="load")


def fill(client: Client, program: Path, count: int) -> float:
    """Submit so many tasks, hundreds at a time, and wait until all are known to the planner; gives the seconds."""
    began = time.monotonic()
    names = [f"waiting-{n}" for n in range(count)]
    for first in range(0, count, BATCH):
        client.submit(workload(program, names[first : first + BATCH]))
    due = time.monotonic() + LEARN_SECONDS
    while any(row["why"].startswith("new:") for row in client.list()) and time.monotonic() < due:
        time.sleep(2.0)
    return time.monotonic() - began


def submit_together(client: Client, program: Path, clients: int, requests: int) -> list[float]:
    """Have each of these clients submit one task after another; the milliseconds of every submission."""
    found: list[float] = []
    prepared = [[workload(program, [f"client-{c}-{n}"]) for n in range(requests)] for c in range(clients)]

    def submit(mine: list[dt.Workload]) -> None:
        for each in mine:
            began = time.perf_counter()
            client.submit(each)
            found.append(1e3 * (time.perf_counter() - began))

    threads = [threading.Thread(target=submit, args=(mine,)) for mine in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == clients * requests, "every submission must be answered"
    return found


def list_alone(client: Client, count: int) -> list[float]:
    """The milliseconds of lists, one after another, while tasks train."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        client.list()
        found.append(1e3 * (time.perf_counter() - began))
        time.sleep(0.2)
    return found


def row(what: str, milliseconds: list[float]) -> dict[str, object]:
    """What is shown of some requests.

    >>> row("list", [1.0, 2.0, 3.0])["median_ms"]
    2.0
    """
    ordered = sorted(milliseconds)
    return {
        "request": what,
        "count": len(ordered),
        "median_ms": statistics.median(ordered),
        "p99_ms": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "longest_ms": ordered[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=50, help="of each client")
    parser.add_argument("--quick", action="store_true", help="30 tasks and 2 clients; writes nothing")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tasks, arguments.clients, arguments.requests = 30, 2, 5
    folder = Path(tempfile.mkdtemp(prefix="dovetail-load-"))
    try:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        with daemon(folder) as client:
            filled = fill(client, program, arguments.tasks)
            submitted = submit_together(client, program, arguments.clients, arguments.requests)
            listed = list_alone(client, LISTS)
            kept = len(client.list())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{arguments.tasks} tasks wait, taken on and built in {filled:.0f} s; then {arguments.clients} clients submit"
    )
    rows = [row("submit", submitted), row("list", listed)]
    bars = [Bar("tasks that were answered and are missing", arguments.tasks + len(submitted) - kept, most=0)]
    if not arguments.quick:
        bars.append(Bar("submit, p99 in ms", float(str(rows[0]["p99_ms"])), most=SUBMIT_MS))
        bars.append(Bar("list, p99 in ms", float(str(rows[1]["p99_ms"])), most=LIST_MS))
    return finish("daemon_load", rows, bars, check=arguments.check, quick=arguments.tasks < parser.get_default("tasks"))


if __name__ == "__main__":
    sys.exit(main())
