"""What a loop of one task holds, whatever takes its steps."""

import collections
import dataclasses
import itertools
import sys
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.testing import programs
from dovetail.train import RESIDENT, SPILL, SessionMember, Training, TrainingSession
from dovetail.train.loop import describe, to_device
from dovetail.vocabulary import ProgramError, TrainingError

CPU = torch.device("cpu")
SEEN: list[float] = []  # a loss may write to what stands here
STEPS = 5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]).float(), batch[1])


def build(**options: Any) -> Training:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found: dict[str, Any] = {"model": model, "batches": programs.pairs(4), "loss": loss, "optimizer": optimizer}
    return Training(**found | options)


def opened(technique: str, **options: Any) -> TrainingSession:
    chosen = {"resident": RESIDENT, "spill": SPILL}[technique]
    return chosen.open([programs.fresh(lambda: build(**options))], device=CPU, threads=1)


def by_hand(training: Training) -> tuple[list[float], list[torch.Tensor]]:
    """bf16 throughout, over masters in float32 that the optimizer steps."""
    model, masters = training.model, list(training.model.parameters())
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    assert isinstance(training.batches, list)
    names = [name for name, _ in model.named_parameters()]
    batches, losses = itertools.cycle(training.batches), []
    for _ in range(STEPS):
        found = []
        for _ in range(training.accumulate):
            halves = [master.detach().bfloat16().requires_grad_() for master in masters]
            inputs, targets = next(batches)
            outputs = torch.func.functional_call(model, dict(zip(names, halves, strict=True)), (inputs.bfloat16(),))
            each = functional.mse_loss(outputs.float(), targets)
            (each / training.accumulate if training.accumulate > 1 else each).backward()
            for master, half in zip(masters, halves, strict=True):
                assert half.grad is not None
                gradient = half.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
            found.append(each.detach())
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(masters, training.clip_norm)
        training.optimizer.step()
        training.optimizer.zero_grad()
        losses.append(float(torch.stack(found).mean()))
    return losses, masters


@pytest.mark.parametrize("technique", ["resident", "spill"])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.05}, {"accumulate": 2, "clip_norm": 0.05}], ids=str)
def test_bf16_throughout_is_what_one_would_write(technique: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)  # as sessions do here: sums have another order on two
    expected, masters = by_hand(programs.fresh(lambda: build(**options)).training)
    session = opened(technique, precision="bf16-pure", **options)
    assert [float(session.advance()[0].loss) for _ in range(STEPS)] == expected
    found = session.state().tensors
    for name, master in zip((name for name, _ in network().named_parameters()), masters, strict=True):
        assert found[f"model/{name}"].dtype == torch.float32
        assert torch.equal(found[f"model/{name}"], master)
    session.close()


@pytest.mark.parametrize("technique", ["resident", "spill"])
def test_a_step_reports_the_mean_of_its_microbatches_and_the_metrics_of_the_last(technique: str) -> None:
    SEEN.clear()

    def told(model: nn.Module, batch: Any) -> Any:
        found = loss(model, batch)
        SEEN.append(float(found.detach()))
        return found, {"number": len(SEEN)}

    session = opened(technique, loss=told, accumulate=2, clip_norm=1e9)
    for step in range(1, 4):
        (report,) = session.advance()
        assert report.step == step
        assert float(report.loss) == float(torch.tensor(SEEN[-2:]).mean())
        assert report.metrics == {"number": 2 * step}
    session.close()


class Moody(nn.Module):
    """A part of it is in evaluation mode for good."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append((self.training, self.norm.training))
        found: torch.Tensor = self.head(self.norm(x))
        return found


@pytest.mark.parametrize("technique", ["resident", "spill"])
def test_modes_are_those_of_the_program_after_an_evaluation(technique: str) -> None:
    model = Moody()
    model.norm.eval()
    x = torch.randn(8, 4)
    session = opened(
        technique,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        evaluate=lambda model: {"mean": float(model(x).mean())},
    )
    session.advance()
    session.evaluate()
    session.advance()
    assert model.modes == [(True, False), (False, False), (True, False)]
    session.close()


def test_a_model_in_evaluation_mode_is_put_to_training() -> None:
    model = network().eval()
    opened("resident", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("technique", ["resident", "spill"])
def test_evaluations_keep_no_graph_and_give_plain_numbers(technique: str) -> None:
    x, grads = torch.randn(8, 4), []

    def evaluate(model: nn.Module) -> dict[str, Any]:
        found = model(x)
        grads.append((found.requires_grad, torch.is_grad_enabled()))
        return {"tensor": found.mean(), "number": 3}

    session = opened(technique, evaluate=evaluate)
    found = session.evaluate()
    assert {name: type(value) for name, value in found.items()} == {"tensor": float, "number": float}
    assert grads == [(False, False)]
    session.close()


@pytest.mark.parametrize("technique", ["resident", "spill"])
def test_an_evaluation_that_raises_puts_the_modes_back(technique: str) -> None:
    def evaluate(model: nn.Module) -> dict[str, float]:
        raise ValueError("mine")

    session = opened(technique, evaluate=evaluate)
    with pytest.raises(ValueError, match="mine"):
        session.evaluate()
    session.advance()
    assert session._training.model.training  # type: ignore[attr-defined]
    session.close()


@pytest.mark.parametrize("technique", ["resident", "spill"])
def test_metrics_must_be_named(technique: str) -> None:
    session = opened(technique, evaluate=lambda model: 0.5)
    with pytest.raises(ProgramError, match="evaluate must give a dict of metrics, got float"):
        session.evaluate()
    session.close()


@pytest.mark.parametrize("technique", ["resident", "spill"])
@pytest.mark.parametrize("kind", [ProgramError, torch.OutOfMemoryError, MemoryError])
def test_what_says_enough_passes_as_it_is(technique: str, kind: type[Exception]) -> None:
    def raises(model: nn.Module, batch: Any) -> torch.Tensor:
        raise kind("enough")

    session = opened(technique, loss=raises)
    with pytest.raises(kind, match="enough"):
        session.advance()
    session.close()


@pytest.mark.parametrize("technique", ["resident", "spill"])
def test_anything_else_is_told_with_the_step_and_the_batch(technique: str) -> None:
    session = opened(technique, batches=[(torch.ones(2, 3), torch.ones(2, 1))])
    with pytest.raises(TrainingError, match=r"step 1 \(epoch 0, batch 1\).*float32\[2, 3\], float32\[2, 1\]"):
        session.advance()
    session.close()


@pytest.mark.parametrize("technique", ["resident", "spill"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda loss: loss.item(), "it gave float."),
        (lambda loss: None, "it gave NoneType."),
        (lambda loss: loss.detach(), r"it gave float32\[\], which depends on none"),
        (lambda loss: torch.stack([loss, loss]), r"it gave float32\[2\]"),
        (lambda loss: (loss, {}, 3), r"it gave \(float32\[\], {}, int\)"),
    ],
)
def test_what_is_no_loss_is_said_to_be_none(technique: str, given: Any, words: str) -> None:
    session = opened(technique, loss=lambda model, batch: given(model(batch[0]).mean()))
    with pytest.raises(ProgramError, match=f"Training.loss must give one number.*{words}"):
        session.advance()
    session.close()


def test_a_step_that_exits_is_told_as_one_that_raises() -> None:
    session = opened("resident", loss=lambda model, batch: sys.exit("enough"))
    with pytest.raises(TrainingError, match=r"step 1 .* raised SystemExit: enough"):
        session.advance()
    session.close()


def test_an_optimizer_and_a_schedule_are_not_taken_for_the_model() -> None:
    training = build()
    optimizer = torch.optim.AdamW(training.model.parameters(), capturable=True)  # not on a CPU
    session = RESIDENT.open(
        [SessionMember(training=dataclasses.replace(training, optimizer=optimizer))], device=CPU, threads=1
    )
    with pytest.raises(TrainingError, match="the optimizer must step with the gradients that there are; step 1 "):
        session.advance()
    training = build()
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, max_lr=0.1, total_steps=2)
    session = RESIDENT.open(
        [SessionMember(training=dataclasses.replace(training, schedule=schedule))], device=CPU, threads=1
    )
    session.advance()
    session.advance()
    with pytest.raises(TrainingError, match="the schedule must have a step for each of the optimizer's; step 3 "):
        session.advance()


def refuse_to_be_called(training: Any, step: int) -> None:
    raise KeyError("lr")


def test_a_callback_and_a_step_function_are_not_taken_for_the_schedule() -> None:
    session = opened("resident", callbacks=[refuse_to_be_called])
    with pytest.raises(
        TrainingError, match=r"callbacks must accept the training and the step's number; step 1 .*KeyErr"
    ):
        session.advance()
    session.close()
    session = opened("resident", loss=None, step=lambda training, batch: {"loss": None})
    with pytest.raises(ProgramError, match="a step function must give numbers as metrics; its 'loss' is a NoneType"):
        session.advance()
    session.close()


@pytest.mark.parametrize("value", ["good", None, torch.ones(3), numpy.ones(3)])
def test_a_metric_that_is_no_number_is_named(value: Any) -> None:
    session = opened("resident", evaluate=lambda model: {"accuracy": value})
    with pytest.raises(ProgramError, match=f"evaluate must give numbers.*'accuracy' is a {type(value).__name__}"):
        session.evaluate()
    session.close()


Pair = collections.namedtuple("Pair", "one two")
META = torch.device("meta")


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        [torch.ones(2), 3],
        (torch.ones(2), "text"),
        {"a": [torch.ones(2)], "b": None},
        Pair(torch.ones(2), (torch.ones(1),)),
        collections.OrderedDict(a=torch.ones(2)),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_batches_move_and_keep_their_type(batch: Any) -> None:
    moved = to_device(batch, META)
    assert type(moved) is type(batch)
    assert all(tensor.device == META for tensor in _tensors(moved))
    assert describe(moved) == describe(batch)
    assert to_device(batch, CPU) is batch


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    inner = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return [tensor for each in inner for tensor in _tensors(each)]
