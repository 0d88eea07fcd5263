"""A daemon that rents: real Ray nodes of this machine, a day of prices in twelve minutes, spot that is taken away
without a word; next to what `dovetail simulate --market` says it costs, given how long work and a start really take.
"""

import csv
import dataclasses
import json
import os
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemesis import ROOT, RayNodes, begin
from rented_nodes import COLUMNS
from reporting import Bar

import dovetail as dt
from dovetail.control import Settings
from dovetail.describe.markets import show_time
from dovetail.store import Store

KIND, ON_DEMAND = "rented", 3.0
# By the hour of the day, the prices of spot in two zones; none: it is taken away, and not to be had.
DAY = ((range(6), 0.3, 0.9), (range(6, 12), None, 0.6), (range(12, 18), 0.15, 0.6), (range(18, 24), None, 0.5))
PROGRAM = f"{Path(__file__).with_name('nodes_program.py')}:paced"
STEP_SECONDS, SAVE_SECONDS, PERIOD_SECONDS = 0.05, 5.0, 4.0
MOVE_SECONDS = 150.0  # what the daemon is told; what a start really takes is measured
PATIENCE_SECONDS = 1500.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rental:
    """How long the day is and how much there is to do in it."""

    hour_seconds: float = 30.0
    steps: int = 5000
    deadline_seconds: float = 1500.0


def rent(folder: Path, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The task by a daemon on rented nodes, and by the simulation."""
    case = Rental(hour_seconds=8.0, steps=1000) if quick else Rental()
    place = RayNodes(nodes=1, cores=0)
    cloud, home = folder / "cloud", folder / "rented"
    cloud.mkdir()
    (cloud / "address").write_text(place.options[-1])
    try:
        daemon = _begin_daemon(case, cloud, home, place, folder / "daemon.log")
        try:
            _submit(case, cloud, home)
            _await_return(home, daemon, folder / "daemon.log")
        finally:
            _dovetail("stop", "--store", str(home))
            daemon.wait(120)
    finally:
        place.close()
    return _compare(case, cloud, home, folder)


def write_table(case: Rental, path: Path, *, at: float) -> None:
    """The day's prices from this moment on, and what holds after it."""
    rows = []
    for hour in range(24):
        a, b = next((a, b) for hours, a, b in DAY if hour in hours)
        moment = show_time(at + hour * case.hour_seconds)
        for zone, market, price in (("a", "spot", a), ("b", "spot", b), ("b", "on demand", ON_DEMAND)):
            rows.append((moment, KIND, zone, market, "" if price is None else price))
    rows.append((show_time(at + case.deadline_seconds + 60), KIND, "b", "on demand", ON_DEMAND))
    whole = path.with_suffix(".new")
    with open(whole, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    whole.replace(path)


def _begin_daemon(case: Rental, cloud: Path, home: Path, place: RayNodes, log: Path) -> "subprocess.Popen[bytes]":
    write_table(case, cloud / "table.csv", at=time.time() - 1)
    tool = shlex.join([sys.executable, str(Path(__file__).with_name("rented_nodes.py")), str(cloud)])
    words = [sys.executable, "-m", "dovetail", "daemon", "--store", str(home), *place.options, "--quiet", "--exact"]
    words += ["--market", f"{tool} prices", "--provision", tool, "--cluster", f"1x{KIND}", "--techniques", "resident"]
    words += ["--objective", f"spend:deadline={case.deadline_seconds:.0f}s", "--every", f"{PERIOD_SECONDS}s"]
    words += [
        "--move",
        f"{MOVE_SECONDS}s",
        "--lost",
        f"{SAVE_SECONDS}s",
        "--save-seconds",
        f"{SAVE_SECONDS}",
        "--retries",
        "100",
    ]
    process = begin(words, dict(os.environ), log)
    until = time.monotonic() + 120
    while "listening" not in log.read_text():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the daemon must begin; found: {log.read_text()[-2000:]}")
        time.sleep(0.2)
    return process


def _submit(case: Rental, cloud: Path, home: Path) -> None:
    write_table(case, cloud / "table.csv", at=float(int(time.time())))
    what = [PROGRAM, "seed=0", f"seconds={STEP_SECONDS}", "--steps", str(case.steps), "--name", "task"]
    _dovetail("submit", *what, "--store", str(home))


def _await_return(home: Path, daemon: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until the task has finished and everything that was rented is given back."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        kinds = [kind for kind, *_ in _events(home)]
        if "finished" in kinds and kinds.count("rented") == kinds.count("returned_node"):
            return
        if daemon.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the task must finish; found: {log.read_text()[-2000:]}")
        time.sleep(1.0)


def _compare(case: Rental, cloud: Path, home: Path, folder: Path) -> tuple[list[dict[str, Any]], list[Bar]]:
    events = list(_events(home))
    spend = sum(data["spend"] for kind, _, data in events if kind == "returned_node")
    reclaims = sum(data["reason"] == "it was taken away" for kind, _, data in events if kind == "returned_node")
    began = next(at for kind, at, _ in events if kind == "rented")
    ended = next(at for kind, at, _ in events if kind == "finished")
    step_seconds = _measured_step(home)
    starts, work = list(_start_seconds(events, step_seconds)), case.steps * step_seconds
    move = sum(starts) / len(starts)
    said = _dovetail(
        *("simulate", "--market", str(cloud / "table.csv"), "--work", f"{work:.3f}s", "--move", f"{move:.3f}s"),
        *("--deadline", f"{case.deadline_seconds:.0f}s", "--lost", f"{SAVE_SECONDS}s", "--every", "1d", "--json"),
    )
    rule = json.loads(said)[0]["rules"]["dovetail"]
    alone = dt.run(
        dt.grid(PROGRAM, seed=[0], seconds=[0.0], steps=case.steps),
        store=folder / "alone",
        settings=Settings(exact=True),
        progress=False,
    )
    learned = next(data["metrics"]["norm"] for kind, _, data in events if kind == "finished")
    row = {
        "of": "spend",
        "spend": spend,
        "simulated": rule["spend"],
        "seconds": ended - began,
        "work_seconds": work,
        "start_seconds": move,
        "starts": len(starts),
        "simulated_starts": rule["starts"],
        "reclaims": reclaims,
        "simulated_reclaims": rule["reclaims"],
    }
    return [row], [
        Bar(
            "spend, next to the simulation's, times, either way",
            max(spend / rule["spend"], rule["spend"] / spend),
            most=1.1,
        ),
        Bar("spend, nodes taken away", reclaims, least=1),
        Bar("spend, seconds to the end, of its deadline", (ended - began) / case.deadline_seconds, most=1),
        Bar("spend, tasks that did not learn what they learn alone", learned != alone.tasks[0].metrics["norm"], most=0),
    ]


def _start_seconds(events: list[tuple[str, float, dict[str, Any]]], step_seconds: float) -> Iterator[float]:
    """From a node's being asked for to the first step there, which is told from the first save."""
    names: dict[str, str] = {}
    asked: dict[str, float] = {}
    began: tuple[str, int] | None = None
    for kind, at, data in events:
        if kind == "rented":
            asked[data["name"]] = at
        elif kind == "joined":
            names |= {node["name"]: node["labels"].get("dovetail-node", "") for node in data["cluster"]["nodes"]}
        elif kind == "started":
            began = names[data["devices"][0].partition(":")[0]], data["step"]
        elif kind == "saved" and began is not None and began[0] in asked:
            yield at - (data["step"] - began[1]) * step_seconds - asked.pop(began[0])


def _measured_step(home: Path) -> float:
    with Store(home) as store:
        return min(each.step_seconds for each in store.profiles() if each.count == 1)


def _events(home: Path) -> Iterator[tuple[str, float, dict[str, Any]]]:
    database = sqlite3.connect(f"file:{home / 'store.sqlite'}?mode=ro", uri=True, timeout=30)
    try:
        for kind, at, data in database.execute("SELECT kind, at_seconds, data FROM events ORDER BY number"):
            yield kind, at, json.loads(data)
    finally:
        database.close()


def _dovetail(*words: str) -> str:
    command = [sys.executable, "-m", "dovetail", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout
