"""How fast updates of moments and weights in fewer bits are, beside exact ones; what is learned so is convergence.py's.

`python bench/numeric.py [--quick] [--check]`: parameters a second that the host updates from bf16 gradients, weights in
bf16 written along, with all cores; and a CPU second; beside bitsandbytes' own 8-bit AdamW on the host, in a folder of
its own if it is not installed. Where there is a CUDA device, the same on it, beside torch's fused AdamW and torchao's
AdamW8bit. Contestants take turns; the median of their turns counts. Bars of the host are ratios of CPU seconds, for
others may be at work there; with cores enough to wait for memory, of seconds too.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from fetched import fetched
from reporting import Bar, finish
from torch import nn

from dovetail.train import Training
from dovetail.train.numeric import approximate_training
from dovetail.train.spill import adamw_kernel, coded_adam_kernel

TURNS = 5
MANY_CORES = 12  # exact updates then wait for memory, most of the time
Update = Callable[[], None]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="small; writes nothing")
    chosen = arguments.parse_args()
    os.environ.setdefault("COLUMNS", "160")
    rows, bars = rates(quick=chosen.quick)
    sys.exit(finish("numeric-rates", rows, bars, check=chosen.check, quick=chosen.quick))


def rates(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    numbers = 1 << (16 if quick else 25)
    rows, bars = [], []
    with contextlib.ExitStack() as stack:
        if not quick:
            stack.enter_context(fetched("bitsandbytes"))
        walls, cpus = turns(on_host(numbers, stack), lambda: None)
    rows += [
        {
            "where": "host",
            "what": what,
            "G parameters/s": numbers / seconds / 1e9,
            "G parameters a CPU second": numbers / cpus[what] / 1e9,
        }
        for what, seconds in walls.items()
    ]
    if {"exact", "state-8bit"} <= cpus.keys() and not quick:
        wide = "avx512f" in Path("/proc/cpuinfo").read_text()
        # Narrow vectors take longer to code than the bytes take that it saves.
        ratio = cpus["exact"] / cpus["state-8bit"]
        bars.append(Bar("host: state-8bit over exact", ratio, least=1.15 if wide else 0.45))
        if wide and len(os.sched_getaffinity(0)) >= MANY_CORES:
            bars.append(Bar("host: the same, in seconds of all cores", walls["exact"] / walls["state-8bit"], least=1.5))
        if "bitsandbytes 8-bit" in cpus:
            ratio = cpus["bitsandbytes 8-bit"] / cpus["state-8bit"]
            bars.append(Bar("host: state-8bit over bitsandbytes'", ratio, least=2.0))
    if torch.cuda.is_available():
        found, _ = turns(on_device(numbers), torch.cuda.synchronize)
        rows += [{"where": "device", "what": what, "G parameters/s": numbers / s / 1e9} for what, s in found.items()]
        if "torchao 8-bit" in found:
            ratio = found["torchao 8-bit"] / found["state-8bit"]
            bars.append(Bar("device: state-8bit over torchao's", ratio, least=1.0))
    return rows, bars


def turns(contestants: dict[str, Update], settle: Callable[[], None]) -> tuple[dict[str, float], dict[str, float]]:
    """The median seconds of one update of each, and the median CPU seconds."""
    for update in contestants.values():
        update()
        update()  # touches all memory, compiles
    walls: dict[str, list[float]] = {name: [] for name in contestants}
    cpus: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(TURNS):
        for name, update in contestants.items():
            settle()
            began, busy = time.perf_counter(), time.process_time()
            update()
            settle()
            walls[name].append(time.perf_counter() - began)
            cpus[name].append(time.process_time() - busy)
    return tuple({name: statistics.median(each) for name, each in found.items()} for found in (walls, cpus))


def on_host(numbers: int, stack: contextlib.ExitStack) -> dict[str, Update]:
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    gradient = torch.randn(numbers).bfloat16()
    found: dict[str, Update] = {}
    for name in ("exact", "state-8bit", "state-bf16", "weights-bf16", "state-8bit+weights-bf16"):
        kernel: Any = adamw_kernel if name == "exact" else coded_adam_kernel
        if kernel.load() is None:
            continue
        optimizer, weight = one(numbers, "" if name == "exact" else name)
        pool = adamw_kernel.ThreadPool(cores, library=kernel.load())
        stack.callback(pool.close)
        found[name] = by_kernel(kernel, pool, optimizer, weight, gradient)
    for name, made in peers("cpu").items():
        found[name] = by_optimizer(made, torch.device("cpu"), gradient.float())
    return found


def by_kernel(kernel: Any, pool: Any, optimizer: Any, weight: nn.Parameter, gradient: torch.Tensor) -> Update:
    travel = torch.zeros_like(gradient) if weight.dtype == torch.float32 else None
    (options,) = optimizer.param_groups

    def update() -> None:
        how = {"gradient": gradient, "travel": travel, "options": options, "scale": 1.0}
        pool.update([kernel.stretch_of(optimizer, weight.data, optimizer.state[weight], **how)])

    return update


def one(numbers: int, approximate: str, device: str = "cpu") -> tuple[Any, nn.Parameter]:
    """AdamW of one parameter."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(numbers // 256, 256, device=device))
    optimizer = torch.optim.AdamW([model.weight], lr=1e-3, fused=(device != "cpu" and not approximate) or None)
    training = Training(model=model, batches=[], loss=print, optimizer=optimizer, precision="bf16-pure")
    approximate_training(training, approximate)
    return optimizer, model.weight


def on_device(numbers: int) -> dict[str, Update]:
    gradient = torch.randn(numbers // 256, 256, device="cuda")
    found: dict[str, Update] = {}
    for name in ("", "state-8bit"):
        optimizer, weight = one(numbers, name, "cuda")
        weight.grad = gradient
        found[name or "exact, torch's fused"] = optimizer.step
    for name, made in peers("cuda").items():
        found[name] = by_optimizer(made, torch.device("cuda"), gradient)
    return found


def by_optimizer(made: Callable[..., Any], device: torch.device, gradient: torch.Tensor) -> Update:
    weight = nn.Parameter(torch.randn_like(gradient, device=device))
    optimizer = made([weight])
    weight.grad = gradient
    return lambda: optimizer.step()


def peers(device: str) -> dict[str, Callable[..., Any]]:
    """What others have, where it is installed and works on the device."""
    found: dict[str, Callable[..., Any]] = {}
    with contextlib.suppress(ImportError):
        import bitsandbytes

        found["bitsandbytes 8-bit"] = lambda parameters: bitsandbytes.optim.AdamW8bit(parameters, lr=1e-3)
    with contextlib.suppress(ImportError):
        from torchao.optim import AdamW8bit

        if device == "cuda":
            found["torchao 8-bit"] = lambda parameters: AdamW8bit(parameters, lr=1e-3)
    return {name: made for name, made in found.items() if works(made, device)}


def works(made: Callable[..., Any], device: str) -> bool:
    try:
        by_optimizer(made, torch.device(device), torch.randn(64, 256, device=device))()
    except Exception as error:
        print(f"left out: {type(error).__name__}: {str(error)[:100]}")
        return False
    return True


if __name__ == "__main__":
    main()
