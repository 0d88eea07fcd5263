"""Who is in a stack: leaving, diverging, failing, saving, loading, sharing, closing."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import FUSE, RESIDENT, Training, TrainingState, checkpoint
from dovetail.vocabulary import CheckpointError, ProgramError, TrainingError
from tests.train.fuse.gangs import CPU, alone, assert_equal, convolutional, decoder, fused, gang, perceptron

RATES: list[dict[str, Any]] = [{"rate": 0.1}, {"rate": 0.03}, {"rate": 0.01}]


def steps(session: Any, live: Any, count: int) -> list[list[float]]:
    return [[float(report.loss) for report in session.advance(live)] for _ in range(count)]


@pytest.mark.parametrize("build", [perceptron, convolutional])
def test_a_member_that_leaves_does_not_disturb_the_others(build: Any) -> None:
    whole, shrinking = fused(build, RATES), fused(build, RATES)
    steps(whole, (0, 1, 2), 6)
    steps(shrinking, (0, 1, 2), 2)
    left = _copied(shrinking.state(1))
    steps(shrinking, (0, 2), 4)
    for member in (0, 2):
        _assert_close(shrinking.state(member), whole.state(member))
    _assert_close(shrinking.state(1), left)


def test_a_member_can_come_back() -> None:
    session, one = fused(perceptron, RATES), alone(perceptron, RATES)[1]
    steps(session, (0, 1, 2), 2)
    steps(session, (0, 2), 2)
    found = steps(session, (2, 1), 2)
    expected = steps(one, (0,), 4)[2:]
    assert [row[1] for row in found] == pytest.approx([row[0] for row in expected], rel=1e-5)


def test_a_member_alone_at_the_end_goes_on() -> None:
    session, one = fused(decoder, [{}, {"rate": 1e-3}]), alone(decoder, [{}, {"rate": 1e-3}])[1]
    steps(session, (0, 1), 1)
    found = steps(session, (1,), 3)
    assert [row[0] for row in found] == pytest.approx([row[0] for row in steps(one, (0,), 4)[1:]], rel=1e-4)


def test_a_member_that_diverges_does_not_disturb_the_others() -> None:
    numbers = [{"rate": 0.1}, {"rate": 1e30}, {"rate": 0.01}]
    session, calm = fused(convolutional, numbers), alone(convolutional, numbers)
    found = steps(session, (0, 1, 2), 5)
    assert not math.isfinite(found[-1][1])
    for member in (0, 2):
        expected = [row[0] for row in steps(calm[member], (0,), 5)]
        assert [row[member] for row in found] == pytest.approx(expected, rel=1e-4)


def test_members_whose_batches_have_other_shapes_are_in_step() -> None:
    def build(size: int) -> Training:
        training = perceptron()
        model = nn.Sequential(nn.BatchNorm1d(8), training.model)
        batches = [(torch.randn(size + number % 2, 8), torch.randint(4, (size + number % 2,))) for number in range(3)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return dataclasses.replace(training, model=model, batches=batches, optimizer=optimizer)

    numbers = [{"size": 6}, {"size": 4}, {"size": 6}]
    assert_equal(fused(build, numbers), alone(build, numbers), steps=8, tolerance=1e-4)


def test_metrics_are_each_members_own() -> None:
    session, solo = fused(perceptron, RATES), alone(perceptron, RATES)
    for report, one in zip(session.advance(range(3)), solo, strict=True):
        expected = one.advance()[0].metrics
        assert report.metrics["of"] == expected["of"] == 6
        assert float(report.metrics["right"]) == float(expected["right"])


def test_a_state_moves_between_techniques(tmp_path: Path) -> None:
    whole = alone(decoder, [{}])[0]
    expected = steps(whole, (0,), 6)
    first = alone(decoder, [{}])[0]
    found = steps(first, (0,), 2)
    state = first.state()
    for number, hop in enumerate(("fuse", "resident")):
        path, _ = checkpoint.write(tmp_path / str(number), state, task="decoder", attempt=1)
        members = gang(decoder, [{}, {"rate": 1e-3}])
        technique, count = (FUSE, 2) if hop == "fuse" else (RESIDENT, 1)
        session = technique.open(members[:count], device=CPU, threads=1)
        session.load(checkpoint.read(path))
        found += [row[:1] for row in steps(session, range(count), 2)]
        state = session.state()
    assert found == [pytest.approx(row, rel=1e-4) for row in expected]
    _assert_close(state, whole.state(), tolerance=1e-3)


def test_evaluation_sees_the_members_own_weights() -> None:
    numbers = [{"rate": 0.1}, {"rate": 0.01}]

    def build(rate: float) -> Training:
        training = perceptron(rate=rate)
        held_out = torch.ones(3, 8)
        training.evaluate = lambda model: {"mean": float(model(held_out).sum())}
        return training

    session, solo = fused(build, numbers), alone(build, numbers)
    steps(session, (0, 1), 3)
    for number, one in enumerate(solo):
        steps(one, (0,), 3)
        assert session.evaluate(number) == pytest.approx(one.evaluate(), rel=1e-4)


# A base that all have in common


def adapted(*, seed: int = 0, base: int = 0) -> Training:
    torch.manual_seed(base)
    frozen = nn.Linear(8, 32).requires_grad_(False)
    torch.manual_seed(100 + seed)
    model = nn.Sequential(frozen, nn.ReLU(), nn.Linear(32, 4))
    training = perceptron()
    return dataclasses.replace(training, model=model, optimizer=torch.optim.AdamW(model[2].parameters(), lr=0.01))


def test_a_frozen_base_is_held_once() -> None:
    members = gang(adapted, [{"seed": 1}, {"seed": 2}, {"seed": 3}])
    FUSE.open(members, device=CPU, threads=1)
    first, *others = (member.training.model for member in members)
    for model in others:
        assert model[0].weight.data_ptr() == first[0].weight.data_ptr()
        assert model[2].weight.data_ptr() != first[2].weight.data_ptr()
    numbers = [{"seed": 1}, {"seed": 2}]
    assert_equal(fused(adapted, numbers), alone(adapted, numbers), steps=4, tolerance=1e-4)


def test_bases_that_differ_are_kept_apart() -> None:
    numbers = [{"base": 0}, {"base": 1}]
    assert_equal(fused(adapted, numbers), alone(adapted, numbers), steps=4, tolerance=1e-4)


def test_a_checkpoint_with_another_base_is_refused() -> None:
    (other,) = alone(adapted, [{"base": 5}])
    session = fused(adapted, [{}, {}])
    with pytest.raises(CheckpointError, match=r"'0.weight' is not"):
        session.load(other.state())


# What goes wrong


def test_whose_batch_it_was(tmp_path: Path) -> None:
    def build(label: int) -> Training:
        training = perceptron()
        training.batches = [(torch.randn(6, 8), torch.full((6,), label))]
        return training

    session = fused(build, [{"label": 0}, {"label": 9}])
    with pytest.raises(TrainingError, match=r"step 1 \(epoch 0, batch 1\) raised IndexError") as failure:
        session.advance((0, 1))
    assert failure.value.member == 1


def _exit(*_: Any) -> None:
    raise SystemExit("no more")


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (lambda model, batch: model(batch[0]), ProgramError, r"must give one number to minimise.* it gave float32\[5"),
        (
            lambda model, batch: model(batch[0][:, :3]),
            TrainingError,
            r"must accept every batch; step 2 .* raised RuntimeError",
        ),
        (_exit, TrainingError, r"must accept every batch; step 2 .* raised SystemExit: no more\. The batch was"),
    ],
)
def test_whose_later_batch_is_bad(spoil: Any, kind: type[Exception], message: str) -> None:
    """A batch of a shape that the stack has not seen yet, so that it is traced once more."""

    def build(count: int) -> Training:
        training = perceptron()
        whole = training.loss
        training.batches = [training.batches[0], tuple(each[:count] for each in training.batches[1])]
        training.loss = lambda model, batch: (spoil if len(batch[0]) == 5 else whole)(model, batch)
        return training

    session = fused(build, [{"count": 6}, {"count": 5}])
    session.advance((0, 1))
    with pytest.raises(kind, match=message) as failure:
        session.advance((0, 1))
    assert failure.value.member == 1


def test_whose_schedule_ended() -> None:
    def build(total: int) -> Training:
        training = perceptron()
        training.schedule = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 0.1, total_steps=total)
        return training

    session = fused(build, [{"total": 9}, {"total": 2}])
    steps(session, (0, 1), 2)
    with pytest.raises(
        TrainingError, match=r"the schedule must have a step for each .*; step 3 .* ValueError"
    ) as found:
        session.advance((0, 1))
    assert found.value.member == 1


def test_whose_batches_ran_out() -> None:
    def build(count: int) -> Training:
        training = perceptron()
        training.batches = list(training.batches) if count > 1 else iter(list(training.batches)[:count])
        return training

    session = fused(build, [{"count": 5}, {"count": 1}])
    session.advance((0, 1))
    with pytest.raises(ProgramError, match="A generator runs once only") as failure:
        session.advance((0, 1))
    assert failure.value.member == 1


def test_closing_leaves_models_with_their_weights() -> None:
    members = gang(perceptron, RATES)
    session = FUSE.open(members, device=CPU, threads=1)
    steps(session, range(3), 2)
    states = [_copied(session.state(number)) for number in range(3)]
    session.close()
    session.close()
    storages = set()
    for member, state in zip(members, states, strict=True):
        for name, parameter in member.training.model.named_parameters():
            assert torch.equal(parameter, state.tensors[f"model/{name}"])
            storages.add(parameter.untyped_storage().data_ptr())
        assert all(
            type(module) in (nn.Sequential, nn.Linear, nn.GELU, nn.Dropout, nn.ReLU)
            for module in member.training.model.modules()
        )
    assert len(storages) == 3 * 6


@pytest.mark.parametrize("knobs", [{"depth": 1}, {"compile": "fast"}])
def test_unknown_knobs_are_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match="must be"):
        fused(perceptron, RATES, **knobs)


def test_looking_at_a_gang_changes_nothing() -> None:
    for name in ("dropout", "generator", "stateful", "norm"):
        members = [programs.fresh(name, seed=seed) for seed in range(2)]
        assert FUSE.refuse(members) is None
        looked = RESIDENT.open(members[:1], device=CPU, threads=1)
        fresh = RESIDENT.open([programs.fresh(name)], device=CPU, threads=1)
        assert steps(looked, (0,), 4) == steps(fresh, (0,), 4)


def _copied(state: TrainingState) -> TrainingState:
    return dataclasses.replace(state, tensors={name: tensor.clone() for name, tensor in state.tensors.items()})


def _assert_close(found: TrainingState, expected: TrainingState, *, tolerance: float = 1e-5) -> None:
    assert found.step == expected.step
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.allclose(found.tensors[name], tensor, rtol=tolerance, atol=tolerance), name
