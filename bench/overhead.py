"""What training through Dovetail costs next to the bare PyTorch loop of the same program.

Both loops run in this process, turn about, on one thread; ours is the code that a worker runs, reporting over a
real socket to another process, with heartbeats. A step's time is read where both fetch their batch, so everything
that happens between two steps counts; saving is measured apart and added at its default pace.
`python bench/overhead.py [--check] [--quick]`
"""

import functools
import os

os.environ["OMP_NUM_THREADS"] = "1"  # as a worker of one core has it: torch settles its threads when it is imported

import argparse
import itertools
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from reporting import Bar, finish
from torch import nn

import dovetail as dt
from dovetail.engines import MemberOrder, Order
from dovetail.engines.runner import run
from dovetail.engines.worker import Worker
from dovetail.engines.worker_context import WorkerContext
from dovetail.train.build import Builder, build
from dovetail.vocabulary import Kind

BAR = 1.03
FETCHED: list[float] = []  # when each batch was asked for, by whichever loop runs


class Stamped:
    """The same batch again and again, with the time of each request."""

    def __init__(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            FETCHED.append(time.perf_counter())
            yield self._batch


def program(width: int, depth: int, batch: int, dropout: float) -> dt.Training:
    """A plain multilayer perceptron with AdamW."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    data = torch.randn(batch, width), torch.randint(10, (batch,))
    return dt.Training(
        model=model,
        batches=Stamped(data),
        loss=cross_entropy,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
    )


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    chosen = arguments.parse_args()
    turns, seconds = (3, 0.3) if chosen.quick else (15, 1.5)
    targets = (0.005,) if chosen.quick else (0.001, 0.005, 0.020)
    rows = [
        {"step": f"about {target * 1e3:.0f} ms", **measure(sized(target), turns=turns, seconds=seconds)}
        for target in targets
    ]
    bars = [Bar("step of about 5 ms, ours over bare", rows[-2 if len(rows) > 1 else 0]["with saving"], most=BAR)]
    sys.exit(finish("overhead", rows, bars, check=chosen.check, quick=chosen.quick))


def sized(target: float) -> dict[str, Any]:
    """A program whose bare step takes about `target` seconds here and now."""
    case = {"width": 128, "depth": 3, "batch": 16, "dropout": 0.1}
    while (taken := statistics.median(bare(case, 30))) < 0.95 * target:
        case["batch"] = int(case["batch"] * min(2.0, max(1.1, target / taken)))
    return case


def measure(case: dict[str, Any], *, turns: int, seconds: float) -> dict[str, float]:
    """The median step of both loops over interleaved turns, and their ratio."""
    with tempfile.TemporaryDirectory() as folder, Reporting() as around:
        steps = max(10, int(seconds / statistics.median(bare(case, 20))))
        bares, ours = [], []
        for turn in range(turns):
            loops = [lambda: bares.append(bare(case, steps)), lambda: ours.append(through(case, steps, around, folder))]
            for loop in loops if turn % 2 else reversed(loops):
                loop()
        # The mean of a turn holds everything that happens between steps; the median is over turns.
        bare_step, our_step = (statistics.median(map(statistics.fmean, found)) for found in (bares, ours))
        ratio = statistics.median(
            statistics.fmean(one) / statistics.fmean(other) for one, other in zip(ours, bares, strict=True)
        )
        saving = around.save_seconds(case) / 30.0
    return {
        "bare_ms": bare_step * 1e3,
        "ours_ms": our_step * 1e3,
        "ratio": ratio,
        "saving_share": saving,
        "with saving": ratio + saving,
    }


def bare(case: dict[str, Any], steps: int) -> list[float]:
    """Seconds of each step of the loop a person would write."""
    training = program(**case)
    model, optimizer = training.model, training.optimizer
    FETCHED.clear()
    for number, batch in enumerate(training.batches):
        if number == steps:
            break
        loss = cross_entropy(model, batch)
        loss.backward()
        optimizer.step()  # type: ignore[union-attr]
        optimizer.zero_grad()  # type: ignore[union-attr]
        if number % 10 == 0:
            loss.item()  # people look at their loss now and then
    return _differences()


def through(case: dict[str, Any], steps: int, around: "Reporting", folder: str) -> list[float]:
    """Seconds of each step of the same program through a worker's code."""
    task = dt.task(f"{__file__}:program", name="overhead", steps=steps, **case)
    member = MemberOrder(task=task, attempt=1, until_step=steps + 1, directory=tempfile.mkdtemp(dir=folder))
    FETCHED.clear()
    _module_stamps().clear()
    run(Order(name="bench", purpose="train", members=(member,), devices=("n0:0",)), around.context)
    FETCHED.extend(_module_stamps())
    return _differences()


def _module_stamps() -> list[float]:
    # The runner imports this file as a program, under another name and with a list of its own.
    from dovetail.describe.programs import load_file

    stamps: list[float] = load_file(Path(__file__)).FETCHED
    return stamps


def _differences() -> list[float]:
    # The first steps allocate.
    return [later - earlier for earlier, later in itertools.pairwise(FETCHED[3:])]


class Reporting:
    """A real worker's channel, drained by another process."""

    def __enter__(self) -> "Reporting":
        ours, theirs = socket.socketpair()
        subprocess.Popen(["cat"], stdin=theirs, stdout=subprocess.DEVNULL)
        theirs.close()
        worker = Worker(ours)
        threading.Thread(target=worker._send_heartbeats, daemon=True).start()
        self.context = WorkerContext(
            report=functools.partial(worker._report, order="bench"),
            stop_reason=lambda: worker._stop_reason,
            acknowledged_step=lambda task: 0,
            device=torch.device("cpu"),
            kind=Kind(name="cpu", processor="cpu"),
            threads=1,
            home=Path(tempfile.mkdtemp()),
            builder=Builder(),
        )
        return self

    def __exit__(self, *error: object) -> None:
        # Left to end with this process: a worker whose channel closes ends its process at once.
        pass

    def save_seconds(self, case: dict[str, Any]) -> float:
        """How long one checkpoint takes."""
        from dovetail.train import RESIDENT, SessionMember, checkpoint

        training = build(dt.task(f"{__file__}:program", name="save", steps=1, **case))
        session = RESIDENT.open([SessionMember(training=training)], device=torch.device("cpu"), threads=1)
        session.advance()
        taken = []
        with tempfile.TemporaryDirectory() as folder:
            for attempt in range(5):
                began = time.perf_counter()
                checkpoint.write(Path(folder), session.state(), task="save", attempt=attempt)
                taken.append(time.perf_counter() - began)
        session.close()
        return statistics.median(taken)


if __name__ == "__main__":
    main()
