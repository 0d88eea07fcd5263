"""Small programs that reach into every corner a technique must get right, each a few milliseconds a step.

`PROGRAMS` holds them by name. They draw their data and weights from the global generators, as users' programs do,
so build them through `fresh`, which seeds first: two builds of one name are then equal.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from dovetail.train import Scheduler, SessionMember, Training
from dovetail.train.randomness import reseed

WORDS = 7


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss of most programs here."""
    device = next(model.parameters()).device  # held-out data is the program's own to move
    inputs, targets = (tensor.to(device) for tensor in batch)
    return functional.mse_loss(model(inputs), targets)


def pairs(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of eight examples as a list."""
    return [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(count)]


def perceptron(*, dropout: float = 0.0) -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))


def dropout() -> Training:
    """Everything users reach for: dropout, a loader that shuffles, AdamW, a schedule, clipping, evaluation."""
    model = perceptron(dropout=0.5)
    data = TensorDataset(torch.randn(26, 4), torch.randn(26, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    held_out = (torch.randn(8, 4), torch.randn(8, 1))
    return Training(
        model=model,
        batches=DataLoader(data, batch_size=8, shuffle=True),  # the last batch is a small one
        loss=lambda model, batch: (squared(model, batch), {"seen": len(batch[0])}),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
        clip_norm=0.1,
        evaluate=lambda model: {"loss": float(squared(model, held_out)), "draw": float(torch.rand(()))},
    )


def generator() -> Training:
    """A loader with a generator of its own, whose state is carried from epoch to epoch."""
    model = perceptron(dropout=0.2)
    data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))
    return Training(model=model, batches=loader, loss=squared, optimizer=torch.optim.Adam(model.parameters()))


def accumulate() -> Training:
    """Two batches a step, of five an epoch: one is left over each time."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4])
    return Training(
        model=model, batches=pairs(5), loss=squared, optimizer=optimizer, schedule=schedule, accumulate=2, clip_norm=1.0
    )


def schedules() -> Training:
    """Three schedulers: one steps after each step, one at each epoch's end, one with a metric."""
    model = perceptron(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rates = torch.optim.lr_scheduler
    return Training(
        model=model,
        batches=pairs(4),
        loss=squared,
        optimizer=optimizer,
        accumulate=2,
        schedules={
            "warmup": rates.LinearLR(optimizer, total_iters=3),
            "decay": Scheduler(rates.StepLR(optimizer, 1, gamma=0.7), every="epoch"),
            "plateau": Scheduler(rates.ReduceLROnPlateau(optimizer, patience=1, factor=0.5), metric="train/step"),
        },
    )


class Counting:
    """Batches that know where they stand: another order every epoch, and `state_dict` to go on from."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches, self._epoch, self._position = batches, 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self._position < len(self._batches):
            self._position += 1
            yield self._batches[(self._position + self._epoch) % len(self._batches)]
        self._epoch, self._position = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """The epoch and the position in it."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from the epoch and position of this state."""
        self._epoch, self._position = state["epoch"], state["position"]


def stateful() -> Training:
    """Batches that resume through their own `state_dict`."""
    model = perceptron(dropout=0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Training(model=model, batches=Counting(pairs(3)), loss=squared, optimizer=optimizer)


def momentum() -> Training:
    """SGD with momentum, in two parameter groups."""
    model = perceptron()
    groups: list[dict[str, Any]] = [
        {"params": [model[0].weight, model[3].weight], "weight_decay": 1e-2},
        {"params": [model[0].bias, model[3].bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True)
    return Training(model=model, batches=pairs(3), loss=squared, optimizer=optimizer)


class Tied(nn.Module):
    """A tiny language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits of the next word."""
        logits: torch.Tensor = self.head(torch.tanh(self.body(self.embedding(words))))
        return logits


def tied() -> Training:
    """Two names for one parameter."""
    model = Tied()
    batches = [torch.randint(WORDS, (4, 6)) for _ in range(3)]
    return Training(
        model=model,
        batches=batches,
        loss=lambda model, words: functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    )


def norm() -> Training:
    """Buffers that change while training."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    return Training(
        model=model,
        batches=pairs(3),
        loss=squared,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        evaluate=lambda model: {"mean": float(model(torch.ones(4, 4, device=next(model.parameters()).device)).mean())},
        evaluate_every=1,
    )


def frozen() -> Training:
    """A frozen layer and a norm kept in evaluation mode, as in fine-tuning."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    model[1].eval()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Training(model=model, batches=pairs(3), loss=squared, optimizer=torch.optim.AdamW(trainable, lr=1e-2))


class Recomputing(nn.Module):
    """Blocks with a dropout each and one they share, called twice a block; optionally computed again in backward."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.linear = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.own = nn.ModuleList(nn.Dropout(0.3) for _ in range(2))
        self.shared = nn.Dropout(0.4)
        self._recompute = recompute

    def block(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """What one block makes of `x`."""
        inner: torch.Tensor = self.own[number](torch.relu(self.linear[number](self.shared(x))))
        outer: torch.Tensor = self.shared(inner)
        return x + outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What all blocks make of `x`, in recomputation where that is asked for."""
        x = self.stem(x)
        for number in range(len(self.linear)):
            x = checkpoint(self.block, number, x, use_reentrant=False) if self._recompute else self.block(number, x)
        found: torch.Tensor = self.head(x)
        return found


def recompute(*, again: bool = True) -> Training:
    """Activation checkpointing around dropout; with `again=False` the same model without it."""
    model = Recomputing(recompute=again)
    return Training(model=model, batches=pairs(3), loss=squared, optimizer=torch.optim.SGD(model.parameters(), lr=1e-2))


def shared() -> Training:
    """One dropout used twice: its two masks differ."""
    return recompute(again=False)


def bf16() -> Training:
    """A perceptron that computes under autocast to bfloat16."""
    model = perceptron(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Training(model=model, batches=pairs(3), loss=squared, optimizer=optimizer, precision="bf16")


def fp16() -> Training:
    """Computes under autocast with its loss scaled; the first steps overflow and are left out."""
    model = perceptron(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Training(
        model=model,
        batches=pairs(3),
        loss=lambda model, batch: 9 * squared(model, batch),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        clip_norm=1.0,
        precision="fp16",
    )


class Count:
    """A counter that can be saved."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        """The counter's value."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""
        self.value = state["value"]


def averaged() -> Training:
    """Weights averaged by a callback, which evaluation looks at, and a loss that counts."""
    model, count = perceptron(), Count()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    held_out = pairs(1)[0]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        count.value += 1
        return squared(model, batch) * (1 + count.value / 10)

    return Training(
        model=model,
        batches=pairs(3),
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-2),
        evaluate=lambda model: {"loss": float(squared(average, held_out))},
        state={"average": average, "count": count},
        callbacks=[lambda training, step: average.update_parameters(training.model)],
    )


def adversarial() -> Training:
    """A step of its own with two optimizers, each for a part of the model, and noise drawn outside any module."""
    model = nn.ModuleDict({"maker": nn.Linear(2, 4), "judge": nn.Linear(4, 1, bias=False)})
    optimizers = {
        "maker": torch.optim.AdamW(model["maker"].parameters(), lr=1e-2),
        "judge": torch.optim.SGD(model["judge"].parameters(), lr=1e-2, momentum=0.9),
    }
    return Training(model=model, batches=pairs(3), optimizer=optimizers, step=_adversarial_step)


def _adversarial_step(training: Training, batch: Any) -> dict[str, Any]:
    model, optimizers = training.model, training.optimizers()
    assert isinstance(model, nn.ModuleDict)
    real, losses = batch[0], {}
    for name in ("judge", "maker"):
        made = model["maker"](torch.randn(len(real), 2, device=real.device))
        sign = 1.0 if name == "judge" else -1.0
        loss = sign * (model["judge"](made).mean() - model["judge"](real).mean())
        model.zero_grad()
        loss.backward()
        optimizers[name].step()
        losses[name] = loss.detach()
    model.zero_grad()
    return {"loss": losses["maker"], "judge": losses["judge"]}


PROGRAMS: dict[str, Callable[[], Training]] = {
    "accumulate": accumulate,
    "adversarial": adversarial,
    "averaged": averaged,
    "bf16": bf16,
    "dropout": dropout,
    "fp16": fp16,
    "frozen": frozen,
    "generator": generator,
    "momentum": momentum,
    "norm": norm,
    "recompute": recompute,
    "schedules": schedules,
    "shared": shared,
    "stateful": stateful,
    "tied": tied,
}

# No random number is drawn in these, so a loop that knows nothing of Dovetail gives the same.
PLAIN = ("accumulate", "momentum", "norm", "tied")


def fresh(build: str | Callable[[], Training], *, seed: int = 0) -> SessionMember:
    """A newly built program by name, or any function that builds one, as the member of a gang.

    >>> one, two = fresh("tied").training.model, fresh("tied").training.model
    >>> torch.equal(one.body.weight, two.body.weight)
    True
    """
    reseed(seed, "build")
    return SessionMember(training=PROGRAMS[build]() if isinstance(build, str) else build(), seed=seed)
