"""The baseline of the demo: the same tasks one after another in one bare process, with all cores each, on an
accelerator where there is one.

A plain PyTorch loop over what the programs build; nothing of Dovetail runs but the recipe's own description.
DOVETAIL_BENCH_SEED is added to every task's seed.
`python bench/one_after_another.py recipes/sweep.py [FOLDER]` prints one line of JSON, and saves every model's tensors
in the folder, if one is given, a file of safetensors for each task.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dovetail.describe import check_parameters, load, load_workload
from dovetail.train import Training
from dovetail.train.loop import AUTOCAST, to_device
from dovetail.vocabulary import Task

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOG_EVERY, LAST = 10, 3  # of every tenth step's losses, the mean of the last three is shown


def main() -> None:
    began = time.perf_counter()
    workload = load_workload(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    rows = [train(task, folder) for task in workload.tasks]
    found = {"seconds": time.perf_counter() - began, "threads": torch.get_num_threads(), "tasks": rows}
    print(json.dumps(found))


def train(task: Task, folder: Path | None = None, *, build: Callable[..., Training] | None = None) -> dict[str, Any]:
    """One task from start to end, as a person would write it; its tensors go to the folder. Who trains several at once
    loads their program before."""
    began = time.perf_counter()
    torch.manual_seed(task.seed + int(os.environ.get("DOVETAIL_BENCH_SEED", "0")))
    build = build or load(task.program)
    training: Training = build(**check_parameters(build, task.parameters, name=task.name))
    model = training.model.to(DEVICE).train()
    every = training.evaluate_every or training.steps_per_epoch()
    steps = task.stop.last_step(training.steps_per_epoch())
    metrics: dict[str, float] = {}
    batches, losses = endless(training), []
    for step in range(1, steps + 1):
        if training.step is not None:
            training.step(training, next(batches))
        else:
            loss = take_step(training, batches)
            if step % LOG_EVERY == 0 or step == steps:
                losses.append(loss)
        if training.evaluate is not None and (step == steps or (every and step % every == 0)):
            model.eval()
            with torch.no_grad():
                metrics = {name: float(value) for name, value in training.evaluate(model).items()}
            model.train()
    if folder is not None:
        save_file(
            {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / f"{task.name}.st"
        )
    last = float(torch.stack(losses[-LAST:]).mean()) if losses else None
    return {"task": task.name, "seconds": time.perf_counter() - began, "metrics": metrics, "loss": last}


def take_step(training: Training, batches: Iterator[Any]) -> torch.Tensor:
    """A step as most people write it; gives the loss of its last batch."""
    assert training.loss is not None
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    for _ in range(training.accumulate):
        batch, dtype = to_device(next(batches), DEVICE), AUTOCAST.get(training.precision)
        with torch.autocast(DEVICE.type, dtype=dtype) if dtype is not None else contextlib.nullcontext():
            found = training.loss(training.model, batch)
        loss = found[0] if isinstance(found, tuple) else found
        (loss / training.accumulate).backward()
    if training.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip_norm)
    training.optimizer.step()
    if training.schedule is not None:
        training.schedule.step()
    training.optimizer.zero_grad()
    return loss.detach()


def endless(training: Training) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    while True:
        yield from training.batches


if __name__ == "__main__":
    main()
