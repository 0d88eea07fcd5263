"""Faults every few seconds for half an hour on one controller: it ends with no leaked process, file handle or shared
memory, and with the resident memory it had when it was warm.

`python bench/soak.py --minutes 30 [--every 3] [--seed 0] [--quick] [--check]`
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from invariants import at_work
from nemesis import Local, Nemesis, begin, command, forgotten
from reporting import Bar, finish

SWEEP = Path(__file__).parent / "sweeps" / "witnessed.py"
STEPS = 2000
# More tasks than can be done in the time: about the most steps a second that one device takes.
STEPS_PER_SECOND = 200
SAMPLE_SECONDS = 2.0
# What is warm: after this share of the time every kind of thing has happened several times, and every library that is
# loaded at first use is there. The solver is one: 20 MiB, when a plan is first worth its while, often after a minute.
WARM = 0.2
# And what is left of the time then must be enough to see something grow.
LEAST_WARM = 0.25
STOPPING_SECONDS = 180.0
# Of the controller: killing it would begin anew what is to be watched.
FAULTS = {"worker killed": 70, "worker given notice": 15, "worker paused": 15}


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the controller held at a moment."""

    seconds: float
    resident_bytes: int
    files: int
    threads: int
    children: int
    dead_children: int
    libraries: int


def sample(process: psutil.Process, seconds: float) -> Sample:
    """What a controller holds now."""
    with process.oneshot():
        children = process.children()
        dead = sum(_status(child) == psutil.STATUS_ZOMBIE for child in children)
        memory = process.memory_info().rss
        libraries = sum(".so" in Path(each.path).name for each in process.memory_maps())
        return Sample(seconds, memory, process.num_fds(), process.num_threads(), len(children), dead, libraries)


def warm_seconds(samples: list[Sample], seconds: float) -> float:
    """When the last library had been loaded, but not before its share of the time was over.

    >>> held = [Sample(float(at), 1 << 20, 9, 1, 2, 0, 40 + (at > 50)) for at in range(100)]
    >>> warm_seconds(held, 100.0), warm_seconds(held[60:], 100.0)
    (51.0, 20.0)
    """
    loads = [after.seconds for before, after in itertools.pairwise(samples) if after.libraries > before.libraries]
    return max([WARM * seconds, *loads])


def _status(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.status())
    return ""


def belonging(mark: str) -> list[int]:
    """The live processes that carry this run's mark in their environment, besides this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("DOVETAIL_SOAK") == mark:
                found.append(process.pid)
    return found


def shared_memory() -> set[str]:
    """What lies in this machine's shared memory."""
    folder = Path("/dev/shm")
    return {each.name for each in folder.iterdir()} if folder.is_dir() else set()


def soak(seconds: float, every: float, seed: int, folder: Path) -> tuple[list[Sample], Nemesis, dict[str, float]]:
    """Run, strike and watch for so long; then stop, and look at what is left."""
    place = Local()
    place.faults = FAULTS
    nemesis = Nemesis(place, seed=seed, kills=sys.maxsize, every_seconds=every)
    cores = len(os.sched_getaffinity(0))
    environment = os.environ | {
        "DOVETAIL_BENCH_STEPS": str(STEPS),
        "DOVETAIL_BENCH_TASKS": str(2 + round(cores * seconds * STEPS_PER_SECOND / STEPS)),
        "DOVETAIL_SOAK": str(folder),
        "DOVETAIL_WITNESS": str(folder / "witness"),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder / "tmp"),  # whatever is forgotten there is seen there
    }
    (folder / "tmp").mkdir()
    before = shared_memory()
    process = begin(command(place, SWEEP, folder / "store", save_every=50), environment, folder / "log")
    samples = watch(process, nemesis, seconds, folder / "witness")
    assert process.poll() is None, (folder / "log").read_text()
    seen = belonging(str(folder))
    assert len(seen) > 1, f"a controller and its workers must be found by their mark; found: {seen}"
    process.send_signal(signal.SIGTERM)
    code = process.wait(STOPPING_SECONDS)
    time.sleep(1.0)
    if files := forgotten(folder / "tmp", folder / "store"):
        print(f"left in temporary folders: {files}")
    left = {
        "exit_code": float(code),
        "processes": float(len(belonging(str(folder)))),
        "shared_memory": float(len(shared_memory() - before)),
        "temporary": float(len(files)),
    }
    return samples, nemesis, left


def watch(process: "subprocess.Popen[bytes]", nemesis: Nemesis, seconds: float, witness: Path) -> list[Sample]:
    """From the first step on, strike now and then, and sample, until the time is over or the process is."""
    seen, samples = psutil.Process(process.pid), []
    while not witness.exists() and process.poll() is None:
        time.sleep(0.1)
    start = looked_at = time.monotonic()
    while (now := time.monotonic()) - start < seconds and process.poll() is None:
        nemesis.strike(process.pid, lambda: at_work(witness), lambda: None)
        if now - looked_at > SAMPLE_SECONDS:
            looked_at = now
            samples.append(sample(seen, now - start))
        time.sleep(0.05)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds from one fault to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="10 seconds, faults every second, without bars on what grows"
    )
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    seconds, every = (10.0, 1.0) if arguments.quick else (60.0 * arguments.minutes, arguments.every)
    folder = Path(tempfile.mkdtemp(prefix="dovetail-soak-"))
    try:
        samples, nemesis, left = soak(seconds, every, arguments.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report(samples, nemesis, left, seconds, arguments)


def report(
    samples: list[Sample], nemesis: Nemesis, left: dict[str, float], seconds: float, arguments: argparse.Namespace
) -> int:
    """Windows of the time, what is left at the end, and the bars."""
    warm = warm_seconds(samples, seconds)
    edges = [warm + (seconds - warm) * n / 4 for n in range(5)]
    rows = []
    for low, high in itertools.pairwise(edges):
        part = [one for one in samples if low <= one.seconds <= high]
        if part:
            rows.append(
                {
                    "minutes": f"{low / 60:.1f} to {high / 60:.1f}",
                    "resident_MiB": statistics.median(one.resident_bytes for one in part) / (1 << 20),
                    "files": int(statistics.median(one.files for one in part)),
                    "threads": int(statistics.median(one.threads for one in part)),
                    "children": max(one.children for one in part),
                    "dead_children": min(one.dead_children for one in part),
                }
            )
    print(
        f"{len(nemesis.faults)} faults in {seconds / 60:.1f} minutes, {nemesis.kills} of them kills; at the end: {left}"
    )
    growth = rows[-1]["resident_MiB"] / rows[0]["resident_MiB"] - 1 if len(rows) > 1 else float("nan")
    bars = [
        Bar("faults", len(nemesis.faults), least=seconds / arguments.every / 4),
        Bar("processes left", left["processes"], most=0),
        Bar("shared memory left", left["shared_memory"], most=0),
        Bar("temporary files left", left["temporary"], most=0),
        Bar("dead children that nobody waits for", rows[-1]["dead_children"], most=0),
        Bar("exit code", left["exit_code"], most=130, least=130),
    ]
    if not arguments.quick:
        bars.append(Bar("share of the time that was watched warm", 1 - warm / seconds, least=LEAST_WARM))
        bars.append(Bar("file handles gained", rows[-1]["files"] - rows[0]["files"], most=0))
        bars.append(Bar("growth of resident memory", growth, most=0.05))
    return finish("soak", rows, bars, check=arguments.check, quick=arguments.quick or seconds < 1000)


if __name__ == "__main__":
    sys.exit(main())
