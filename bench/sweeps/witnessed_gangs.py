"""The witnessed tasks, and with them long ones whose layers take their time: on nodes of one device, what ends soonest
is a pipeline of such a task over several nodes. Pipelines learn the same bits as one device does.

Their layers keep a witness, too, in a file of their own (DOVETAIL_WITNESS with `.ranks`): of the ranks of a pipeline
only the last computes a loss.
"""

import itertools
import json
import os
import time

import torch
from torch import nn
from witnessed import STEPS
from witnessed import workload as single

import dovetail as dt

GANGS = int(os.environ.get("DOVETAIL_BENCH_GANGS", "2"))
LAYERS, MICROBATCHES, WIDTH = 4, 4, 20
LAYER_SECONDS = 0.004

_builds = itertools.count()


class PacedLayer(nn.Module):
    """Does something that takes its time before it computes."""

    def __init__(self, width, before):
        super().__init__()
        self.linear, self.before = nn.Linear(width, width), before

    def forward(self, inputs):
        self.before()
        return torch.tanh(self.linear(inputs))


def tower(mark="gang", seed=0):
    """One epoch is the whole training, so a batch's number says which step it belongs to."""
    torch.manual_seed(seed)
    path, build = os.environ.get("DOVETAIL_WITNESS"), f"{os.getpid()}-gang-{next(_builds)}"
    files = {end: os.open(path + end, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for end in ("", ".ranks") if path}

    def witness(end, step):
        if files:
            line = [mark, build, step, os.getpid(), time.time(), sorted(os.sched_getaffinity(0))]
            os.write(files[end], (json.dumps(line) + "\n").encode())  # one write, appended: whole or not there

    def dawdle():
        witness(".ranks", 0)
        time.sleep(LAYER_SECONDS if files else 0.0)

    model = nn.Sequential(*(PacedLayer(WIDTH, dawdle) for _ in range(LAYERS)))
    data = torch.randn(STEPS * MICROBATCHES, 16, WIDTH, generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(model, batch):
        number, inputs = batch
        outputs = model(inputs)
        if outputs.requires_grad and int(number) % MICROBATCHES == 0:
            # When gradients come back: that the model is looked at before it is cut into stages is no step.
            outputs.register_hook(lambda _: witness("", int(number) // MICROBATCHES + 1))
        return nn.functional.mse_loss(outputs, inputs.roll(1, 1))

    return dt.Training(
        model=model,
        batches=[(torch.tensor(number), data[number]) for number in range(len(data))],
        loss=loss,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        evaluate=lambda model: {"norm": model[0].linear.weight.norm()},
        evaluate_every=50,
        accumulate=MICROBATCHES,
        clip_norm=1.0,
        log_every=1,
    )


gangs = [dt.task(tower, name=f"gang-{n}", mark=f"gang-{n}", seed=n, steps=STEPS) for n in range(GANGS)]
workload = dt.workload([*single.tasks, *gangs], name="witnessed gangs")
