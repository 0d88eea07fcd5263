"""Small tasks that keep a witness: for every batch trained on, a line that says which, in which process, and when.

The line is written by the training itself, so that what really ran can be told from what was recorded of it: by the
loss, or on an accelerator, where a step that is replayed runs no Python, by the batches as they are taken. The
witness's path is read from DOVETAIL_WITNESS, the number of tasks and of steps from DOVETAIL_BENCH_TASKS and _STEPS.
"""

import itertools
import os

import dovetail as dt

STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "300"))
TASKS = int(os.environ.get("DOVETAIL_BENCH_TASKS", "6"))
STEP_SECONDS = 0.005  # long enough for faults to meet every kind of moment

_builds = itertools.count()


class Witnessed:
    """Batches that call a function with the number of each as it is taken. They can be gone on with at any place, so
    that nobody takes one who does not train on it."""

    def __init__(self, batches, witness):
        self._batches, self._witness, self._next = batches, witness, 0

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        while self._next < len(self._batches):
            self._next += 1
            self._witness(self._next - 1)
            yield self._batches[self._next - 1]
        self._next = 0

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._next = state["next"]


def net(mark="a", width=32, draws=True, seed=0):
    """`draws` says whether training draws random numbers; without any, a bare loop gives the same bits."""
    import json
    import time

    import torch
    from torch import nn

    torch.manual_seed(seed)  # weights that depend on nobody else's draws
    dropout = nn.Dropout(0.2) if draws else nn.Identity()
    model = nn.Sequential(nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(), dropout, nn.Linear(width, 5))
    data = torch.randn(STEPS, 16, 20, generator=torch.Generator().manual_seed(seed))
    labels = data[:, :, :5].argmax(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    accelerated = torch.cuda.is_available()
    path, build = os.environ.get("DOVETAIL_WITNESS"), f"{os.getpid()}-{next(_builds)}"
    file = path and os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def witness(number):
        if file:
            cores = sorted(os.sched_getaffinity(0))
            line = [mark, build, int(number) + 1, os.getpid(), time.time(), cores]
            os.write(file, (json.dumps(line) + "\n").encode())  # one write, appended: whole or not there
            time.sleep(STEP_SECONDS)

    def loss(model, batch):
        number, inputs, labels = batch
        if not accelerated:
            witness(number)
        noisy = inputs + 0.1 * torch.randn_like(inputs) if draws else inputs
        return nn.functional.cross_entropy(model(noisy), labels), {"noise": noisy.std()}

    def evaluate(model):
        device = next(model.parameters()).device
        with torch.no_grad():
            return {"accuracy": (model(data[0].to(device)).argmax(1) == labels[0].to(device)).float().mean()}

    # One epoch is the whole training, so a batch's number is the step that it belongs to.
    batches = [(torch.tensor(number), data[number], labels[number]) for number in range(STEPS)]
    return dt.Training(
        model=model,
        batches=Witnessed(batches, witness) if accelerated else batches,
        loss=loss,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        evaluate=evaluate,
        evaluate_every=50,
        clip_norm=1.0,
        log_every=1,
    )


workload = dt.workload(
    [
        dt.task(
            net, name=f"task-{n}", mark=f"task-{n}", width=(24, 48)[n % 2], draws=n // 2 % 2 == 1, seed=n, steps=STEPS
        )
        for n in range(TASKS)
    ],
    name="witnessed",
)
