"""A GPT of 1.4 billion parameters on one device, resident, its products in fp8 beside bf16, with both loss curves.

`python bench/fp8.py [--check] [--quick] [--eager] [--seconds 60]`. Both train in one process from the same weights with
the same batches, steps interleaved in rounds, so that both see the same device; a ratio is of medians over rounds.
Blocks are compiled by torch on both sides, so that quantising becomes a part of what comes before; with `--eager` they
are not. A curve lies behind by the share of its steps that bf16 did not need for the loss that fp8 ended with.
Then the same model goes through `dovetail run` as a task of 20,000 steps, of which it is given a minute or two, with
`--allow fp8` and without: what was chosen, and what a step took.
`--quick` is a toy on whatever is at hand; where fp8 is refused the reason stands in the place of its figures.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from commands import run_words, stopped_after
from gang_rates import gang_rates
from reporting import Bar, finish

from dovetail.describe.programs import load_file
from dovetail.store import Store
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.train.fp8_products import ScaledLinear, fast_forms
from dovetail.train.numeric import open_session as open_with
from dovetail.vocabulary import TechniqueRefused

LEAST_SPEED_UP = 1.15
# Of a curve that falls as fast as this one, two seeds lie further apart than this.
MOST_BEHIND = 0.1
WARM_UP, ROUND, SMOOTHED = 5, 5, 20
SWEEP = str(ROOT / "bench" / "sweeps" / "approximated.py")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--seconds", type=float, default=60.0, help="how long the steps of both take together")
    arguments.add_argument("--eager", action="store_true", help="also without compiling, and products by themselves")
    chosen = arguments.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for compiled in [True] * (not chosen.quick) + [False] * (chosen.quick or chosen.eager):  # compiling is not quick
        found, speed_up, behind = compare(device, compiled=compiled, seconds=chosen.seconds, quick=chosen.quick)
        rows += found
        if compiled and speed_up:
            bars = [Bar("step of bf16 over fp8", speed_up, least=LEAST_SPEED_UP)]
            bars += [Bar("share of steps by which fp8's curve lies behind", behind, most=MOST_BEHIND)]
    found, speed_up = through_run(quick=chosen.quick)
    rows += found
    if bars:
        bars.append(Bar("`dovetail run`: a step without over one with --allow fp8", speed_up, least=LEAST_SPEED_UP))
    if chosen.quick or chosen.eager:
        rows.append({"name": "one block's products alone", "speed_up": products(device, quick=chosen.quick)})
    return finish("fp8", rows, bars, check=chosen.check, quick=chosen.quick or not bars)


def compare(
    device: torch.device, *, compiled: bool, seconds: float, quick: bool
) -> tuple[list[dict[str, Any]], float, float]:
    """A row for each, how many times faster fp8 is, and how far its curve lies behind; zeros where it is refused."""
    sessions: dict[str, Any] = {"bf16": open_session(device, {}, compiled=compiled, quick=quick)}
    try:
        sessions["fp8"] = open_session(device, {"approximate": "fp8"}, compiled=compiled, quick=quick)
    except TechniqueRefused as reason:
        print(f"fp8 was refused: {reason}")
    step_seconds, losses = train(sessions, device, seconds=0.5 if quick else seconds)
    how = "compiled" if compiled else "eager"
    rows = [show(f"{name}, {how}", step_seconds[name], losses[name]) for name in sessions]
    for session in sessions.values():
        session.close()
    if "fp8" not in sessions:
        return rows, 0.0, 0.0
    speed_up = statistics.median(step_seconds["bf16"]) / statistics.median(step_seconds["fp8"])
    rows[-1]["speed_up"] = f"{speed_up:.3f}"
    return rows, speed_up, behind(losses["bf16"], losses["fp8"])


def through_run(*, quick: bool) -> tuple[list[dict[str, Any]], float]:
    """A row for whole commands without and with the name, and how many times faster a step is with it."""
    rows, seconds = [], {}
    variables = {"DOVETAIL_BENCH_STEPS": "8", "DOVETAIL_BENCH_QUICK": "1"} if quick else {}
    for words, limit in ((["--allow", "fp8"], 110.0), ([], 70.0))[: 1 if quick else 2]:
        name = " ".join(["dovetail run", *words])
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "store"
            # A save of 17 GB on the way would be measured with the steps.
            stopped_after(limit, run_words(SWEEP, home, "--save-seconds", "3600", *words), **variables)
            last = gang_rates(home)[-1:]
            with Store(home) as store:
                losses = [p.value for _, task in store.tasks() for p in store.points(task.identity, name="train/loss")]
        row: dict[str, Any] = {"name": name, "steps": len(losses)}
        if losses:
            row["mean_loss_of_last_20"] = round(statistics.fmean(losses[-SMOOTHED:]), 4)
        for rate in last:
            seconds[name] = rate.measured_seconds
            row["name"] = f"{name}: {rate.option.technique} {dict(rate.option.knobs)}"
            row["step_milliseconds"] = round(1e3 * rate.measured_seconds, 2)
        rows.append(row)
    exact, approximate = (seconds.get(name, math.nan) for name in ("dovetail run", "dovetail run --allow fp8"))
    return rows, exact / approximate


def behind(exact: list[float], approximate: list[float]) -> float:
    """The share of its steps that the exact curve, smoothed, did not need for the end of the other."""
    curve = [statistics.fmean(exact[end - SMOOTHED : end]) for end in range(SMOOTHED, len(exact) + 1)]
    end = statistics.fmean(approximate[-SMOOTHED:])
    return 1 - next((number for number, loss in enumerate(curve, SMOOTHED) if loss <= end), len(exact)) / len(exact)


def open_session(device: torch.device, knobs: dict[str, Any], *, compiled: bool, quick: bool) -> Any:
    torch.manual_seed(0)
    precision = "bf16" if device.type == "cuda" or knobs else "fp32"  # a CPU without bf16 units is slow at it
    training = gpt(precision=precision, compiled=compiled, quick=quick)
    return open_with(RESIDENT, [SessionMember(training=training)], device=device, threads=1, knobs=knobs)


def gpt(*, precision: str, compiled: bool, quick: bool, seed: int = 0) -> Training:
    size = {"size": "10m", "context": 32, "batch": 2} if quick else {"size": "1.4b", "context": 1024, "batch": 8}
    more = {"fast": True, "fused": torch.cuda.is_available(), "chunks": 8, "compiled": compiled}
    training: Training = load_file(ROOT / "recipes" / "gpt.py").gpt(**size, precision=precision, seed=seed, **more)
    return training


def train(
    sessions: dict[str, Any], device: torch.device, *, seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of a step in each round, and all losses, by session."""
    step_seconds: dict[str, list[float]] = {name: [] for name in sessions}
    losses: dict[str, list[torch.Tensor]] = {name: [] for name in sessions}
    for name, session in sessions.items():
        began = time.perf_counter()
        losses[name] += [session.advance()[0].loss for _ in range(WARM_UP)]
        synchronise(device)
        print(f"{name}: {WARM_UP} steps to warm up took {time.perf_counter() - began:.1f} s", flush=True)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not step_seconds["bf16"]:
        for name, session in sessions.items():
            began = time.perf_counter()
            losses[name] += [session.advance()[0].loss for _ in range(ROUND)]
            synchronise(device)
            step_seconds[name].append((time.perf_counter() - began) / ROUND)
    return step_seconds, {name: [float(loss) for loss in found] for name, found in losses.items()}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(name: str, step_seconds: list[float], losses: list[float]) -> dict[str, Any]:
    marks = [0, 4, 9, 19, 39, 59, 79, 99, 149, 199, 299, 399]
    curve = ", ".join(f"{mark + 1}: {losses[mark]:.3f}" for mark in marks if mark < len(losses))
    return {
        "name": name,
        "step_milliseconds": round(1e3 * statistics.median(step_seconds), 2),
        "steps": len(losses),
        "mean_loss_of_last_20": round(statistics.fmean(losses[-SMOOTHED:]), 4),
        "loss_at_step": curve,
    }


def products(device: torch.device, *, quick: bool) -> str:
    """How many times faster each layer of a block is, forward and backward, and what share quantising has."""
    width, rows = (64, 64) if quick else (2048, 8192)
    found = []
    for wide, deep in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
        compute = torch.bfloat16 if device.type == "cuda" else torch.float32
        inputs = torch.randn(rows, deep, device=device, dtype=compute, requires_grad=True)
        weight = torch.randn(wide, deep, device=device, requires_grad=True)
        upstream = torch.randn(rows, wide, device=device, dtype=torch.bfloat16)
        torch._dynamo.reset()  # so many shapes would be too many for one function
        forms = fast_forms(device)

        def exact(inputs: Any = inputs, weight: Any = weight, upstream: Any = upstream) -> None:
            torch.nn.functional.linear(inputs, weight.to(inputs.dtype)).backward(upstream.to(inputs.dtype))

        def scaled(inputs: Any = inputs, weight: Any = weight, upstream: Any = upstream, forms: Any = forms) -> None:
            ScaledLinear.apply(inputs, weight, None, forms).backward(upstream)

        def quantise(inputs: Any = inputs, weight: Any = weight, upstream: Any = upstream, forms: Any = forms) -> None:
            for matrix, dtype in ((inputs, "float8_e4m3fn"), (weight, "float8_e4m3fn"), (upstream, "float8_e5m2")):
                forms.both(matrix.detach(), getattr(torch, dtype))

        seconds = [timed(each, device) for each in (exact, scaled, quantise)]
        found.append(f"{deep}→{wide}: {seconds[0] / seconds[1]:.2f} ({seconds[2] / seconds[1]:.0%} quantising)")
    return ", ".join(found)


def timed(action: Callable[[], None], device: torch.device) -> float:
    for _ in range(3):
        action()
    samples = []
    for _ in range(5):
        synchronise(device)
        began = time.perf_counter()
        for _ in range(5):
            action()
        synchronise(device)
        samples.append((time.perf_counter() - began) / 5)
    return statistics.median(samples)


if __name__ == "__main__":
    sys.exit(main())
