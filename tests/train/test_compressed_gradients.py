"""Copies that exchange less than their gradients: the recurrence, the checkpoint, and what it leaves alone."""

from collections.abc import Iterable

import numpy
import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import REPLICATE, RESIDENT, Training
from dovetail.train.compressed_gradients import DIMENSIONS, EXACT_STEPS
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError

pytestmark = pytest.mark.process

CPU, RANKS, SEED = torch.device("cpu"), 2, 0
WIDTH, ROWS, RATE = 32, 8, 0.05


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    inputs = [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(8)]
    return [(each, each @ target) for each in inputs]


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def layers() -> Training:
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return Training(
        model=model, batches=batches(), loss=loss_of, optimizer=torch.optim.SGD(model.parameters(), lr=RATE)
    )


def open_copies(followers, way: str):
    return followers.open(REPLICATE, layers, knobs={"approximate": way} if way else {})


def weights(state: TrainingState) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.tensors.items() if name.startswith("model/")}


def rank_gradients(training: Training, batch: tuple[torch.Tensor, torch.Tensor]) -> list[list[torch.Tensor]]:
    """Each rank's gradients, by parameter."""
    found, share = [], ROWS // RANKS
    for rank in range(RANKS):
        part = tuple(each[rank * share : (rank + 1) * share] for each in batch)
        training.model.zero_grad()
        training.loss(training.model, part).backward()
        found.append([parameter.grad.clone() for parameter in training.model.parameters()])
    return found


def orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """By Gram and Schmidt, column by column."""
    columns: list[torch.Tensor] = []
    for column in matrix.unbind(1):
        rest = column - sum((other.dot(column) * other for other in columns), torch.zeros_like(column))
        columns.append(rest / rest.norm())
    return torch.stack(columns, dim=1)


def true_steps(way: str, count: int) -> Iterable[dict[str, torch.Tensor]]:
    """The same recurrence by plain torch, all ranks in one process; weights after each step."""
    training = layers()
    parameters = list(training.model.parameters())
    errors = [[torch.zeros_like(parameter) for parameter in parameters] for _ in range(RANKS)]
    bases: dict[int, torch.Tensor] = {}
    for step in range(count):
        found = rank_gradients(training, training.batches[step])
        if way == "gradients-bf16":
            halves = [[(each.bfloat16() / RANKS) for each in own] for own in found]
            means = [sum(each[1:], each[0]).float() for each in zip(*halves, strict=True)]
        elif step < EXACT_STEPS:
            means = [torch.stack(each).mean(0) for each in zip(*found, strict=True)]
        else:
            if not bases:
                torch.manual_seed(numpy.random.RandomState(SEED).randint(1_000_000_000))
                matrices = [n for n in range(len(parameters)) if parameters[n].ndim == 2]
                bases = {n: torch.randn(parameters[n].shape[1], DIMENSIONS) for n in matrices}
            means = compress(found, errors, bases)
        with torch.no_grad():
            for parameter, mean in zip(parameters, means, strict=True):
                parameter -= RATE * mean
        yield {f"model/{name}": each.detach().clone() for name, each in training.model.named_parameters()}


def compress(
    found: list[list[torch.Tensor]], errors: list[list[torch.Tensor]], bases: dict[int, torch.Tensor]
) -> list[torch.Tensor]:
    means = []
    for number in range(len(found[0])):
        own = [found[rank][number] + errors[rank][number] for rank in range(RANKS)]
        mean = torch.stack(own).mean(0)
        if number in bases:
            left = orthonormal(mean @ orthonormal(bases[number]))
            bases[number] = mean.t() @ left
            mean = left @ bases[number].t()
        for rank in range(RANKS):
            errors[rank][number] = own[rank] - mean
        means.append(mean)
    return means


@pytest.mark.parametrize("way", ["gradients-bf16", "gradients-lowrank"])
def test_the_fast_form_equals_the_true_one(followers, way: str) -> None:
    session = open_copies(followers, way)
    for expected in true_steps(way, 7):
        session.advance()
        for name, tensor in weights(session.state()).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["gradients-bf16", "gradients-lowrank"])
def test_it_is_another_mathematics_and_learns(followers, way: str) -> None:
    exact = open_copies(followers, "")
    exact_losses = [float(exact.advance()[0].loss) for _ in range(40)]
    exact_weights = weights(exact.state())
    other = open_copies(followers, way)
    losses = [float(other.advance()[0].loss) for _ in range(40)]
    assert any(not torch.equal(tensor, exact_weights[name]) for name, tensor in weights(other.state()).items())
    assert losses[-1] < 0.8 * losses[0]
    assert losses[-1] == pytest.approx(exact_losses[-1], rel=0.1)


@pytest.mark.parametrize("way", ["gradients-bf16", "gradients-lowrank"])
@pytest.mark.parametrize("stop", [2, 5])
def test_stopped_and_resumed_is_bit_equal_to_undisturbed(followers, way: str, stop: int) -> None:
    session = open_copies(followers, way)
    saved = None
    for step in range(8):
        session.advance()
        if step + 1 == stop:
            state = session.state()
            saved = TrainingState(
                step=state.step, tensors={n: t.clone() for n, t in state.tensors.items()}, values=state.values
            )
    undisturbed = {name: tensor.clone() for name, tensor in session.state().tensors.items()}
    again = open_copies(followers, way)
    assert saved is not None
    again.load(saved)
    for _ in range(8 - stop):
        again.advance()
    found = again.state().tensors
    assert found.keys() == undisturbed.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in undisturbed.items())


def test_what_was_left_out_survives_another_number_of_ranks(followers) -> None:
    session = open_copies(followers, "gradients-lowrank")
    for _ in range(5):
        session.advance()
    state = session.state()
    names = sorted(name for name in state.tensors if name.startswith("gradients/errors"))
    assert len(names) == RANKS
    three = {**state.tensors, "gradients/errors/2": torch.zeros_like(state.tensors[names[0]])}
    packed = state.values["gradients"]
    packed = {"__dict__": [[key, value] for key, value in packed["__dict__"]]}
    for entry in packed["__dict__"]:
        if entry[0] == "errors":
            entry[1] = [*entry[1], {"__tensor__": "gradients/errors/2"}]
    wider = TrainingState(step=state.step, tensors=three, values={**state.values, "gradients": packed})
    total = sum((state.tensors[name] for name in names), torch.zeros_like(state.tensors[names[0]])) / 3
    again = open_copies(followers, "gradients-lowrank")
    again.load(wider)
    found = again.state().tensors
    for name in names:
        torch.testing.assert_close(found[name], total)


def test_one_device_goes_on_only_with_exact_steps(followers) -> None:
    """A single copy exchanges nothing, so that it cannot keep the mathematics that the task began with."""
    session = open_copies(followers, "gradients-lowrank")
    for _ in range(4):
        session.advance()
    alone = RESIDENT.open([programs.fresh(layers)], device=CPU, threads=1)
    with pytest.raises(CheckpointError, match="the checkpoint has gradients-lowrank=1, this training exact steps"):
        alone.load(session.state())
