"""A step on all parameters in a row is a step on each."""

from typing import Any

import pytest
import torch
from torch import nn

from dovetail.train.flat_optimizer import FlatOptimizer, FlatSteps

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]),
]
OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.ASGD, {}),
]


def made(kind: type[torch.optim.Optimizer], options: dict[str, Any], device: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).to(device)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters()), "weight_decay": 0.2}]
    if kind is torch.optim.Rprop:
        groups[1].pop("weight_decay")
    return model, kind(groups, **options)  # type: ignore[call-arg]


def backward(model: nn.Module, step: int) -> None:
    model.zero_grad()
    generator = torch.Generator().manual_seed(step)
    batch = torch.randn(4, 5, generator=generator).to(next(model.parameters()).device)
    model(batch).square().mean().backward()


def assert_same(one: Any, other: Any, device: str) -> None:
    # On a CPU the last elements of a tensor are computed one by one, and those may round otherwise.
    close = torch.equal if device == "cuda" else torch.allclose
    assert isinstance(one, torch.Tensor) == isinstance(other, torch.Tensor)
    assert close(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_a_step_in_a_row_is_a_step_of_each(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], device: str
) -> None:
    (plain, plainly), (model, optimizer) = made(kind, options, device), made(kind, options, device)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (plainly, optimizer)]
    flat: FlatOptimizer | None = None
    for step in range(8):
        for each in (plain, model):
            backward(each, step)
        plainly.step()
        if step == 2:
            flat = FlatOptimizer.of(optimizer, list(model.parameters()))
            assert flat is not None
        if flat is None:
            optimizer.step()
        elif step == 5:  # in between one may be taken plainly
            flat.push()
            optimizer.step()
            flat.pull()
        else:
            assert flat.fits(list(model.parameters()))
            flat.fill()
            flat.step()
        for schedule in schedules:
            schedule.step()
    assert flat is not None
    flat.push()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert_same(one, other, device)
        states = optimizer.state[one], plainly.state[other]
        assert states[0].keys() == states[1].keys()
        for name in states[0]:
            assert_same(states[0][name], states[1][name], device)


def test_it_says_whether_a_step_of_its_own_would_have_been_the_same() -> None:
    model, optimizer = made(torch.optim.AdamW, {}, "cpu")
    other, plainly = made(torch.optim.AdamW, {}, "cpu")
    for step in range(3):
        for each in (model, other):
            backward(each, step)
        if step:
            flat = FlatOptimizer.of(optimizer, list(model.parameters()))
            assert flat is not None
            flat.fill()
            same = flat.equals_plain_step()
            assert same
            model[0].weight.grad.mul_(2)
            flat.fill()
            model[0].weight.grad.div_(2)
        else:
            optimizer.step()
        plainly.step()
    for one, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, its), "and takes the plain one"
    backward(model, 9)
    flat.fill()
    model[0].weight.grad.mul_(2)
    assert not flat.equals_plain_step()


def refused(model: nn.Module, optimizer: Any) -> bool:
    return FlatOptimizer.of(optimizer, [each for each in model.parameters() if each.grad is not None]) is None


def test_what_is_no_matter_of_elements_is_left_alone() -> None:
    model, optimizer = made(torch.optim.AdamW, {}, "cpu")
    backward(model, 0)
    optimizer.step()
    assert not refused(model, optimizer)
    assert refused(model, torch.optim.Adafactor(model.parameters()))
    assert refused(model, type("Mine", (torch.optim.AdamW,), {})(model.parameters()))
    optimizer.register_step_post_hook(lambda *_: None)
    assert refused(model, optimizer)


def test_parameters_that_are_not_as_far_on_as_others_are_left_alone() -> None:
    model, optimizer = made(torch.optim.AdamW, {}, "cpu")
    backward(model, 0)
    model[0].weight.grad = None
    optimizer.step()
    backward(model, 1)
    optimizer.step()
    assert refused(model, optimizer)


def test_parameters_that_share_memory_or_have_no_row_are_left_alone() -> None:
    model, optimizer = made(torch.optim.AdamW, {}, "cpu")
    model[1].bias.data = model[1].weight.data
    backward(model, 0)
    optimizer.step()
    assert refused(model, optimizer)
    scalar = nn.ParameterList([nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(3))])
    optimizer = torch.optim.AdamW(scalar.parameters())
    (scalar[0] * scalar[1]).sum().backward()
    optimizer.step()
    assert refused(scalar, optimizer)


def test_momentum_that_begins_late_reaches_the_optimizer() -> None:
    model, optimizer = made(torch.optim.SGD, {"lr": 0.1}, "cpu")
    steps = FlatSteps(optimizer)
    for step in range(4):
        backward(model, step)
        if step == 1:
            steps.lay_out(list(model.parameters()))
        if step == 2:
            for group in optimizer.param_groups:
                group["momentum"] = 0.9
        steps.step(list(model.parameters()), is_filled=False)
    steps.settle()
    assert all(optimizer.state[each]["momentum_buffer"].shape == each.shape for each in model.parameters())


def test_parameters_that_were_moved_do_not_fit_any_more() -> None:
    model, optimizer = made(torch.optim.AdamW, {}, "cpu")
    other, plainly = made(torch.optim.AdamW, {}, "cpu")
    steps = FlatSteps(optimizer)
    for step in range(6):
        for each in (model, other):
            backward(each, step)
        if step == 1:
            steps.lay_out(list(model.parameters()))
        if step == 3:
            model[0].weight.data = model[0].weight.data.clone()  # as model.cpu() does, or who loads weights so
        steps.step(list(model.parameters()), is_filled=False)
        plainly.step()
    steps.settle()
    for one, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, its)
        assert optimizer.state[one]["step"] == plainly.state[its]["step"] == 6


def test_parameters_without_gradients_stay_as_they_are() -> None:
    model, optimizer = made(torch.optim.AdamW, {}, "cpu")
    model[0].requires_grad_(False)
    backward(model, 0)
    optimizer.step()
    backward(model, 1)
    flat = FlatOptimizer.of(optimizer, [each for each in model.parameters() if each.grad is not None])
    assert flat is not None
    before = model[0].weight.clone()
    flat.fill()
    flat.step()
    assert torch.equal(model[0].weight, before)
    assert not flat.fits(list(model.parameters()))
