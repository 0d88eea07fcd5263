"""What is learned with approximations beside exact steps: the parts `charlm` and `gpt` of convergence.py.

Each approximation × {AdamW, SGD with momentum} × three seeds: the held-out loss at the end. `gpt` has 30 million
parameters, for a CUDA device. Trainings go on side by side: what is compared is losses, not seconds.
"""

import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

import torch
from reporting import Bar

from dovetail.describe.programs import load_file
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.train.numeric import approximations_of, open_session
from dovetail.train.randomness import reseed
from dovetail.vocabulary.approximations import APPROXIMATIONS, combinations

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
PROGRAMS = ("charlm", "gpt")
SEEDS = (0, 1, 2)
RATES = {"AdamW": 3e-4, "SGD": 0.3}
STUDENT = 4.30  # of two degrees of freedom: 95% of means of three are within
# Each has a CUDA context of its own, and several are at work on the host while one is on the device.
MOST_AT_ONCE = 12

Case = tuple[str, str, str, int]  # program, optimizer, approximations, seed


def measure(program: str, *, steps: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A row for each optimizer and its ways, and whether `state-8bit` is within a deviation of exact."""
    seeds = SEEDS[:2] if quick else SEEDS
    ways = {kind: ways_of(build(program, kind, 0, quick=quick)) for kind in RATES}
    cases = [(program, kind, way, seed) for kind, some in ways.items() for way in some for seed in seeds]
    ends = dict(zip(cases, train_all(cases, steps=steps, quick=quick), strict=True))
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for kind, way in dict.fromkeys((kind, way) for _, kind, way, _ in cases):
        losses, exact = ([ends[program, kind, one, seed] for seed in seeds] for one in (way, ""))
        apart = [mine - other for mine, other in zip(losses, exact, strict=True)]
        half = STUDENT * statistics.stdev(apart) / math.sqrt(len(apart))
        rows.append(
            {
                "optimizer": kind,
                "steps are": way or "exact",
                "steps": steps,
                "held-out loss": statistics.mean(losses),
                "deviation": statistics.stdev(losses),
                "less exact": statistics.mean(apart),
                "95% interval": f"{statistics.mean(apart) - half:+.4f} to {statistics.mean(apart) + half:+.4f}",
            }
        )
        if way == "state-8bit":
            off = abs(statistics.mean(apart)) / statistics.stdev(exact)
            bars.append(Bar(f"{kind}, state-8bit: off by, in deviations of exact", off, most=1.0))
    return rows, bars


def ways_of(training: Training) -> list[str]:
    """Exact, and the approximations of moments and weights that a training can have."""
    able = approximations_of(training)
    return ["", *combinations([name for name in able if APPROXIMATIONS[name].concerns in ("state", "weights")])]


def build(program: str, kind: str, seed: int, *, quick: bool) -> Training:
    reseed(seed, "build")
    if program == "charlm":
        size = {"width": 64, "depth": 2, "context": 32, "batch": 8}
        training: Training = load_file(RECIPES / "charlm.py").charlm(seed=seed, **size)
    else:
        size = {"size": "10m" if quick else "30m", "context": 64 if quick else 256, "batch": 2 if quick else 32}
        precision = "bf16" if torch.cuda.is_available() else "fp32"
        training = load_file(RECIPES / "gpt.py").gpt(seed=seed, precision=precision, **size)
    if kind == "SGD":
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=RATES[kind], momentum=0.9)
    return training


def train_all(cases: list[Case], *, steps: int, quick: bool) -> list[float]:
    """The held-out losses at the end of each."""
    options = (itertools.repeat(steps), itertools.repeat(quick))
    if quick:
        return list(map(train, cases, *options))
    workers = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(train, cases, *options))


def train(case: Case, steps: int, quick: bool) -> float:
    """The held-out loss after so many steps."""
    torch.set_num_threads(1)
    program, kind, approximate, seed = case
    device = torch.device("cuda" if program == "gpt" and torch.cuda.is_available() else "cpu")
    member = SessionMember(training=build(program, kind, seed, quick=quick), seed=seed)
    knobs = {"approximate": approximate} if approximate else {}
    with contextlib.closing(open_session(RESIDENT, [member], device=device, threads=1, knobs=knobs)) as session:
        for _ in range(steps):
            session.advance()
        found = session.evaluate()
    print(f"{program}, {kind}, seed {seed}, {approximate or 'exact'}: {found}", flush=True)
    return next(value for name, value in found.items() if "loss" in name)
