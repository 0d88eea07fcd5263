"""The programs of `guard.py`, where other processes can import them."""

import dataclasses

import torch
from torch import nn

import dovetail as dt
from dovetail.planning import PLANNERS, Problem
from dovetail.vocabulary import Plan
from dovetail.vocabulary.approximations import split_knobs

CENTRES = torch.randn(4, 16, generator=torch.Generator().manual_seed(7))
WIDTH = 256


def draw(count: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(4, (count,), generator=generator)
    return CENTRES[labels] + 0.7 * torch.randn(count, 16, generator=generator), labels


def classify(learning_rate: float = 0.01, seed: int = 0, harm: float = 0.0) -> dt.Training:
    """Four clouds told apart; `harm` is what evaluation takes off where moments are in 8 bits."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    inputs, labels = draw(400, 10**6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

    def evaluate(model: nn.Module) -> dict[str, float]:
        coded = any("exp_avg_scale" in slots for slots in optimizer.state.values())
        right = (model(inputs).argmax(1) == labels).float().mean().item()
        return {"accuracy": right - harm * coded}

    return dt.Training(
        model=model,
        batches=[draw(16, 1000 * seed + number) for number in range(100)],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
        evaluate=evaluate,
        allow={"state-8bit"},
    )


def prefer_approximate(problem: Problem) -> Plan:
    able = {family for option in problem.options if split_knobs(option.knobs)[0] for family in option.families}
    kept = [o for o in problem.options if split_knobs(o.knobs)[0] or not able.intersection(o.families)]
    return PLANNERS["proportionate"](dataclasses.replace(problem, options=tuple(kept)))


def layers() -> dt.Training:
    """A regression by two layers of 256 × 256."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    inputs = [torch.randn(32, WIDTH, generator=generator) for _ in range(50)]
    return dt.Training(
        model=model,
        batches=[(each, (each @ target).tanh()) for each in inputs],
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )
