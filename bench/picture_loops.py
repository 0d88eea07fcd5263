"""What people do by hand with the pictures of `bench/feed_joint.py`, one way a process; prints one line of JSON.

`python bench/picture_loops.py loader SECONDS` is a plain loop over a `DataLoader`; `split` trains the tasks one after
another with half of the cores for reading and half for computing; `spill FEED_CORES STEPS DEVICE_BYTES` is a spilled
model that leaves so many cores to its feed.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from a checkout, too

import torch
from one_after_another import DEVICE, endless, take_step

from dovetail.describe import load_workload
from dovetail.engines.feeding import TrainingLoad, open_feed
from dovetail.train import SPILL, SessionMember, Training
from dovetail.train.build import build
from dovetail.train.staged_batches import StagedBatches

SWEEP = str(Path(__file__).parent / "sweeps" / "pictures.py")
SETTLING_SECONDS = 5.0


def main() -> None:
    way, *words = sys.argv[1:]
    print(json.dumps({"loader": loader, "split": split, "spill": spill}[way](*map(int, words))))


def trainings() -> list[tuple[Training, int]]:
    """What the sweep's tasks build, and their steps."""
    return [(build(task), task.stop.last_step(None)) for task in load_workload(SWEEP).tasks]


def loader(seconds: int) -> dict[str, Any]:
    """Seconds a step of the first task, once things have settled."""
    training, _ = trainings()[0]
    training.model.to(DEVICE).train()
    batches = endless(training)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < SETTLING_SECONDS or not steps:
        take_step(training, batches)
        steps += 1
    _wait()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        take_step(training, batches)
        steps += 1
    _wait()
    found = {"step_seconds": (time.perf_counter() - began) / steps}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a loader's processes take seconds to end


def split() -> dict[str, Any]:
    """Train all tasks, each with one half of the cores for its feed and the other for its steps."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    for training, steps in trainings():
        training.model.train()
        torch.set_num_threads(half)
        os.sched_setaffinity(0, cores[half:] or cores)  # what is started now stays there
        with open_feed(training.batches, cores=half) as feed:
            training.batches = feed.running
            batches = endless(training)
            first = next(batches)
            os.sched_setaffinity(0, cores[:half])
            rest = iter([first])
            for step in range(steps):
                take_step(training, rest if not step else batches)
    return {}


def spill(feed_cores: int, steps: int, device_bytes: int) -> dict[str, Any]:
    """Seconds a step of the first task, spilled, with the cores divided so; the first half of the steps settle."""
    training, _ = trainings()[0]
    threads = max(1, len(os.sched_getaffinity(0)) - feed_cores)
    load = TrainingLoad(threads=threads, lock_share=0.0 if DEVICE.type == "cpu" else 1.0)
    with open_feed(training.batches, cores=feed_cores, load=load) as feed:
        training.batches = StagedBatches(feed.running, device=DEVICE)
        knobs = {"device_bytes": device_bytes}
        session = SPILL.open([SessionMember(training=training)], device=DEVICE, threads=threads, knobs=knobs)
        for step in range(steps):
            if step == steps // 2:
                _wait()
                began = time.perf_counter()
            session.advance()
        _wait()
        taken = (time.perf_counter() - began) / (steps - steps // 2)
        session.close()
    return {"step_seconds": taken}


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
