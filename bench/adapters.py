"""Lightning modules and Trainers under Dovetail, beside the loops that they were written for.

First each of them alone: the losses of fifty steps must be those of `Trainer.fit` or `Trainer.train`, for the same seed
and order. Then a sweep over learning rates, through `dovetail run`, beside what one would do otherwise: the same
trainings by the original loop, one after another in one process. The last losses of both must be near each other; the
sweep may be fused, which rounds otherwise. `python bench/adapters.py [NAME ...] [--check] [--quick]`; what is named
takes the place of its rows in the results.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from reporting import Bar, finish

HERE = Path(__file__).parent
SEED = 3
NAMES = {
    "autoencoder": ("lightning_programs", 1e-3),
    "adversaries": ("lightning_programs", 2e-3),
    "classifier": ("lightning_programs", 1e-2),
    "finetuning": ("trainer_programs", 5e-4),
    "weighted": ("trainer_programs", 5e-4),
    "lora": ("trainer_programs", 5e-3),
    "sft": ("trainer_programs", 2e-3),
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--original", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    arguments.add_argument("--tasks", type=int, default=0, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if unknown := set(chosen.names) - set(NAMES):
        arguments.error(f"NAME must be one of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    if chosen.original:
        return train_originals(chosen.names[0], steps=chosen.steps, tasks=chosen.tasks)
    names = chosen.names or (["autoencoder", "lora"] if chosen.quick else list(NAMES))
    rows, bars = [], []
    for name in names:
        row = {"name": name} | compare(name, steps=8 if chosen.quick else 50)
        row |= sweep(name, steps=20, tasks=2) if chosen.quick else sweep(name, steps=150, tasks=16)
        rows.append(row)
        bars.append(Bar(f"{name}, largest difference of a loss", row["loss_difference"], most=1e-6))
        bars.append(Bar(f"{name}, of last losses in the sweep", row["sweep_difference"], most=1e-3))
        if not chosen.quick:
            bars.append(Bar(f"{name}, one after another over the sweep", row["speed-up"], least=1.0))
    return finish("adapters", rows, bars, check=chosen.check, quick=chosen.quick, part_by="name")


def compare(name: str, *, steps: int) -> dict[str, Any]:
    """One training by the original loop, and by ours."""
    from dovetail.train import RESIDENT, SessionMember

    module, rate = NAMES[name]
    programs = __import__(module)
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        original = programs.fit_losses if module == "lightning_programs" else programs.train_losses
        theirs, model = original(name, rate, SEED, steps=steps)
        training = programs.from_parts(name, rate, SEED)
    members = [SessionMember(training=training, seed=SEED)]
    with contextlib.closing(RESIDENT.open(members, device=torch.device("cpu"), threads=1)) as session:
        ours = [float(session.advance()[0].loss) for _ in range(steps)]
    pairs = zip(model.parameters(), training.model.parameters(), strict=True)
    return {
        "steps": len(theirs),
        "loss_difference": max(abs(a - b) for a, b in zip(theirs, ours, strict=True)),
        "weight_difference": max(float((a - b).detach().abs().max()) for a, b in pairs),
    }


def rates(name: str, tasks: int) -> list[float]:
    """Learning rates around the usual one."""
    return [round(NAMES[name][1] * 2 ** (number / tasks), 8) for number in range(tasks)]


def sweep(name: str, *, steps: int, tasks: int) -> dict[str, Any]:
    """A sweep as a user runs it, beside the original loop on the same trainings."""
    words = [str(HERE / "adapters.py"), name, "--original", "--steps", str(steps), "--tasks", str(tasks)]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    theirs_seconds = time.perf_counter() - began
    theirs = json.loads(done.stdout.splitlines()[-1])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sweep.py")
        lines = ["import sys", f"sys.path.insert(0, {str(HERE)!r})", f"import {NAMES[name][0]} as programs"]
        given = f"learning_rate={rates(name, tasks)}, seed={SEED}, steps={steps}"
        lines += ["import dovetail as dt", f"workload = dt.grid(programs.{name}, {given})"]
        file.write_text("\n".join(lines))
        began = time.perf_counter()
        run = [sys.executable, "-m", "dovetail", "run", str(file), "--quiet"]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        ours_seconds = time.perf_counter() - began
        ours, techniques = look_at(Path(folder, ".dovetail"))
    return {
        "tasks": tasks,
        "steps_each": steps,
        "one_after_another_s": theirs_seconds,
        "dovetail_s": ours_seconds,
        "speed-up": theirs_seconds / ours_seconds,
        "techniques": ", ".join(techniques),
        "sweep_difference": max(abs(a - b) for a, b in zip(theirs, ours, strict=True)),
    }


def look_at(home: Path) -> tuple[list[float], list[str]]:
    """The last losses in a store, in the order of the tasks, and the techniques that trained them."""
    from dovetail.control import open_result
    from dovetail.store import Store
    from dovetail.vocabulary.events import AttemptStarted

    with Store(home) as store:
        techniques = sorted(
            {e.option.technique for _, e in store.events() if isinstance(e, AttemptStarted) and e.option}
        )
    found = open_result(home).tasks
    return [task.value("train/loss", last=True) for task in found], techniques


def train_originals(name: str, *, steps: int, tasks: int) -> int:
    """The same trainings by the original loop; prints the last loss of each as JSON."""
    module, _ = NAMES[name]
    programs = __import__(module)
    original = programs.fit_losses if module == "lightning_programs" else programs.train_losses
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # as both loops do, left alone
    with contextlib.redirect_stdout(io.StringIO()):
        found = [original(name, rate, SEED, steps=steps)[0][-1] for rate in rates(name, tasks)]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
