"""How well training converges when it is not the plain recurrence: weights that change under way, and approximations.

`python bench/convergence.py [PART] [--quick] [--check] [--steps N]`. Parts `charlm` and `gpt` are those of
convergence_approximate.py: moments and weights in fewer bits. `ages`, the default, is 1F1B, stashing, vertical sync and
2BW at depth 4. Each mode is run as its recurrence on one device, which the technique
equals bit by bit (`tests/train/pipeline`); that is cheaper than four processes, and says the same. An update takes one
batch whatever the mode; a stage uses weights that are so many updates old:

    1F1B 0;  stashing 3, 2, 1, 0;  vertical sync 3;  2BW 1.

Time is in batches of work for one stage: an update takes one, with 1F1B of four microbatches 7/4, for the pipeline runs
empty. `reached` is how long it takes to the loss that 1F1B has with the same optimizer after two thirds of its steps,
and blank where that is not reached. Optimizers: SGD with momentum; AdamW; AdamW with rates divided by the weights' age
at first, as PipeMare does; Muon for matrices, with AdamW for the rest. Mean over seeds. A mode has SGD with the best
of three learning rates, as its user would choose: older weights bear less.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "recipes"))

import argparse
import collections
import concurrent.futures
import itertools
import math
import multiprocessing
import os
import statistics
from collections.abc import Callable
from typing import Any

import convergence_approximate
import torch
from reporting import Bar, finish
from torch import nn
from torch.func import functional_call

from dovetail.describe.programs import load_file
from dovetail.feeds import Cursor
from dovetail.train import Training
from dovetail.train.randomness import KeyedRandomness, reseed

DEPTH = 4
AGES = {"1f1b": (0, 0, 0, 0), "stashing": (3, 2, 1, 0), "vertical_sync": (3, 3, 3, 3), "2bw": (1, 1, 1, 1)}
UPDATE_SECONDS = {"1f1b": (4 + DEPTH - 1) / 4, "stashing": 1.0, "vertical_sync": 1.0, "2bw": 1.0}
RATES = {"charlm": {"SGD": 0.1, "AdamW": 1e-3}, "digits": {"SGD": 0.03, "AdamW": 1e-3}}
KINDS = ("SGD", "AdamW", "AdamW, corrected", "Muon")
# By which the learning rate is divided, in turn.
DIVISORS = {"SGD": (1, 4, 16), "AdamW": (1,), "AdamW, corrected": (1,), "Muon": (1,)}
Case = tuple[str, str, str, int, int]  # recipe, mode, optimizer, divisor, seed
Optimizers = list[torch.optim.Optimizer]


class _Whole(nn.Module):
    """The loss of a model as a module, so that it can be computed with other weights."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.model, self._loss = training.model, training.loss

    def forward(self, batch: Any) -> torch.Tensor:
        assert self._loss is not None
        found = self._loss(self.model, batch)
        return found[0] if isinstance(found, tuple) else found


def charlm(seed: int, *, quick: bool) -> Training:
    size = {"width": 16, "depth": 2, "context": 16, "batch": 4} if quick else {"width": 32, "context": 32, "batch": 8}
    training: Training = load_file(ROOT / "recipes" / "charlm.py").charlm(seed=seed, **size)
    head: Any = training.model.head
    head.weight = nn.Parameter(head.weight.detach().clone())  # weights that change under way are of one stage
    return training


def digits(seed: int, *, quick: bool) -> Training:
    training: Training = load_file(ROOT / "recipes" / "digits.py").cnn(channels=4 if quick else 16, seed=seed)
    return training


PROGRAMS: dict[str, Callable[..., Training]] = {"charlm": charlm, "digits": digits}


def optimizers(kind: str, weights: list[nn.Parameter], rates: dict[str, float]) -> Optimizers:
    """What updates one stage."""
    if kind == "SGD":
        return [torch.optim.SGD(weights, lr=rates["SGD"], momentum=0.9)]
    if kind == "Muon":
        matrices = [weight for weight in weights if weight.dim() == 2]
        rest = [weight for weight in weights if weight.dim() != 2]
        muon: Optimizers = [torch.optim.Muon(matrices, lr=0.02)] if matrices else []
        return muon + ([torch.optim.AdamW(rest, lr=rates["AdamW"])] if rest else [])
    return [torch.optim.AdamW(weights, lr=rates["AdamW"])]


def run(
    name: str, mode: str, kind: str, divisor: int, *, seed: int, steps: int, every: int, quick: bool
) -> list[float]:
    """The held-out loss before the first update and after each `every` updates."""
    reseed(seed, "build")
    training = PROGRAMS[name](seed, quick=quick)
    random = KeyedRandomness(training.model, seed=seed, device=torch.device("cpu"))
    cursor, whole = Cursor(training.batches, before_draw=random.before_batch), _Whole(training)
    names = dict(whole.named_parameters())
    stages = [list(names)[len(names) * s // DEPTH : len(names) * (s + 1) // DEPTH] for s in range(DEPTH)]
    rates = {each: rate / divisor for each, rate in RATES[name].items()}
    made = [optimizers(kind, [names[n] for n in stage], rates) for stage in stages]
    first = [[group["lr"] for each in stage for group in each.param_groups] for stage in made]
    old = [
        collections.deque([_copies(names, stage)], maxlen=age + 1)
        for stage, age in zip(stages, AGES[mode], strict=True)
    ]
    found = [_held_out(training, random, 0)]
    for step in range(steps):
        (batch,) = cursor.take(1)
        random.begin(step, 0)
        used = {n: weight for versions in old for n, weight in versions[0].items()}
        functional_call(whole, used, (batch,)).backward()
        for s, stage in enumerate(stages):
            for n in stage:
                names[n].grad, used[n].grad = used[n].grad, None
            groups = [group for each in made[s] for group in each.param_groups]
            if kind == "AdamW, corrected":
                # Divided by the age at first, and not at all once a third of the steps is over.
                share = max(0.0, 1 - 3 * step / steps)
                for group, rate in zip(groups, first[s], strict=True):
                    group["lr"] = rate / (1 + AGES[mode][s]) ** share
            nn.utils.clip_grad_norm_([names[n] for n in stage], 1.0)
            for each in made[s]:
                each.step()
            old[s].append(_copies(names, stage))
        if (step + 1) % every == 0:
            found.append(_held_out(training, random, step))
    return found


def _run(case: Case, options: dict[str, Any]) -> list[float]:
    torch.set_num_threads(1)
    *what, seed = case
    return run(*what, seed=seed, **options)


def _copies(names: dict[str, nn.Parameter], stage: list[str]) -> dict[str, torch.Tensor]:
    return {name: names[name].detach().clone().requires_grad_() for name in stage}


def _held_out(training: Training, random: KeyedRandomness, step: int) -> float:
    assert training.evaluate is not None
    training.model.eval()
    with torch.no_grad(), random.evaluation(step):
        found = training.evaluate(training.model)
    training.model.train()
    return float(found.get("held_out_loss", found.get("loss", float("nan"))))


def _end(runs: list[list[float]]) -> float:
    """The mean loss at the end; infinite where one is not finite."""
    return statistics.mean(each[-1] if math.isfinite(each[-1]) else math.inf for each in runs)


def bars_of(curves: list[list[float]]) -> list[Bar]:
    """Every run stays finite, and learns: it ends with less loss than it began with."""
    endless = sum(not all(map(math.isfinite, each)) for each in curves)
    risen = sum(not each[-1] < each[0] for each in curves)
    return [
        Bar("runs with a loss that is not finite", endless, most=0),
        Bar("runs that end with no less loss than they began with", risen, most=0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("ages", *convergence_approximate.PROGRAMS), default="ages")
    parser.add_argument("--steps", type=int, help="of each training; 120, and 600 of a gpt")
    parser.add_argument("--quick", action="store_true", help="a toy size; writes nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part != "ages":
        steps = arguments.steps or (4 if arguments.quick else {"charlm": 120, "gpt": 600}[arguments.part])
        rows, bars = convergence_approximate.measure(arguments.part, steps=steps, quick=arguments.quick)
        name = f"convergence-{arguments.part}"
        return finish(name, rows, bars, check=arguments.check, quick=arguments.quick)
    return ages(arguments)


def ages(arguments: argparse.Namespace) -> int:
    steps, every, seeds = (12, 4, (0,)) if arguments.quick else (arguments.steps or 120, 12, (0, 1, 2))
    options = {"steps": steps, "every": every, "quick": arguments.quick}
    cases: list[Case] = [
        (name, mode, kind, divisor, seed)
        for name, kind, mode in itertools.product(PROGRAMS, KINDS, AGES)
        for divisor, seed in itertools.product(DIVISORS[kind], seeds)
    ]
    if arguments.quick:
        curves = [_run(case, options) for case in cases]
    else:  # side by side, one thread each: what is compared is losses, not seconds
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
            curves = list(pool.map(_run, cases, itertools.repeat(options)))
    found = dict(zip(cases, curves, strict=True))
    rows: list[dict[str, Any]] = []
    ends: dict[tuple[str, str, str], float] = {}
    judged: list[list[float]] = []
    for name in PROGRAMS:
        for kind in KINDS:
            goal = float("nan")
            for mode in AGES:
                ways = {each: [found[name, mode, kind, each, seed] for seed in seeds] for each in DIVISORS[kind]}
                divisor, runs = min(ways.items(), key=lambda way: _end(way[1]))
                judged += runs
                curve = [statistics.mean(each) for each in zip(*runs, strict=True)][1:]
                goal = curve[len(curve) * 2 // 3 - 1] if mode == "1f1b" else goal
                reached = next((n for n, loss in enumerate(curve, start=1) if loss <= goal), None)
                ends[name, kind, mode] = curve[-1]
                rows.append(
                    {
                        "recipe": name,
                        "optimizer": kind,
                        "mode": mode,
                        "rate over": divisor,
                        "held_out_loss": curve[-1],
                        "over_1f1b": curve[-1] - ends[name, kind, "1f1b"],
                        "spread": max(each[-1] for each in runs) - min(each[-1] for each in runs),
                        "reached": reached and reached * every * UPDATE_SECONDS[mode],
                    }
                )
    return finish("convergence", rows, bars_of(judged), check=arguments.check, quick=arguments.quick)


if __name__ == "__main__":
    raise SystemExit(main())
