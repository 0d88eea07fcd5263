"""Weights that stand in for a model's own take all of its places and give them back."""

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dovetail.train.weights import HalfWeights, StandIns, sites, to_half


class Tied(nn.Module):
    """One weight in three places, one module in two, and a bias that is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight
        self.again = nn.ModuleList([self.one])
        self.own = nn.Parameter(self.one.weight.detach().clone())
        self.register_parameter("also", self.one.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.again[0](x)) @ self.own
        return found


def test_every_place_of_a_parameter_is_found_once() -> None:
    model = Tied()
    found = sites(model)
    assert list(found) == list(model.parameters())
    places = [(id(module), name) for each in found.values() for module, name in each]
    assert len(places) == len(set(places))
    weight = {(id(model), "also"), (id(model.one), "weight"), (id(model.two), "weight")}
    assert {(id(module), name) for module, name in found[model.one.weight]} == weight
    assert all(module._parameters[name] is p for p, each in found.items() for module, name in each)


def doubled(model: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
    return {parameter: nn.Parameter(parameter.detach() * 2) for parameter in model.parameters()}


def test_stand_ins_take_every_place_of_their_masters() -> None:
    model, x = Tied(), torch.randn(2, 4)
    masters = list(model.parameters())
    others = doubled(model)
    stand_ins = StandIns(model, others)
    assert set(model.parameters()) == set(others.values())
    assert model.two.weight is model.one.weight is model.also
    expected = Tied()
    expected.load_state_dict({name: value.detach() for name, value in model.state_dict().items()})
    assert torch.equal(model(x), expected(x))
    stand_ins.remove()
    assert list(model.parameters()) == masters
    stand_ins.remove()
    assert list(model.parameters()) == masters


def test_masters_are_back_for_a_while_whatever_happens() -> None:
    model = Tied()
    masters = list(model.parameters())
    others = doubled(model)
    stand_ins = StandIns(model, others)
    with stand_ins.masters():
        assert list(model.parameters()) == masters
    assert set(model.parameters()) == set(others.values())
    with contextlib.suppress(ValueError), stand_ins.masters():
        raise ValueError
    assert set(model.parameters()) == set(others.values())


@given(chosen=st.sets(st.integers(0, 3)))
def test_what_has_no_stand_in_stays(chosen: set[int]) -> None:
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(4)))
    before = list(model.parameters())
    StandIns(model, {before[number]: nn.Parameter(torch.zeros(1, 1)) for number in chosen})
    assert {number for number, parameter in enumerate(model.parameters()) if parameter is not before[number]} == chosen


# Halves


def test_halves_compute_and_masters_collect_in_full() -> None:
    model = nn.Linear(3, 2)
    masters = [model.weight, model.bias]
    half = HalfWeights(model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    gradients = []
    for number in range(3):
        model(torch.full((1, 3), 1 + number / 3)).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        half.collect()
        assert all(parameter.grad is None for parameter in model.parameters())
    for master, each in zip(masters, zip(*gradients, strict=True), strict=True):
        assert master.grad is not None
        assert master.grad.dtype == torch.float32
        assert torch.equal(master.grad, (each[0].float() + each[1].float()) + each[2].float())


def test_refreshing_rounds_the_masters_to_the_nearest() -> None:
    model = nn.Linear(3, 2)
    masters, half = [model.weight, model.bias], HalfWeights(model)
    copies = list(model.parameters())
    with torch.no_grad():
        for master in masters:
            master.add_(0.123456)
    half.refresh()
    assert list(model.parameters()) == copies
    assert all(torch.equal(copy, master.bfloat16()) for copy, master in zip(copies, masters, strict=True))


def test_what_is_frozen_is_halved_and_collects_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    masters, half = list(model.parameters()), HalfWeights(model)
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, False, True, True]
    model(torch.ones(1, 2)).sum().backward()
    half.collect()
    assert [master.grad is None for master in masters] == [True, True, False, False]


def test_whole_numbers_stay_whole() -> None:
    model = nn.Linear(2, 2)
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    table = model.table
    HalfWeights(model)
    assert model.table is table


def test_closing_leaves_the_model_as_it_was() -> None:
    model = Tied()
    masters = dict(model.named_parameters())
    half = HalfWeights(model)
    assert model(torch.ones(1, 4)).dtype == torch.bfloat16
    half.close()
    assert dict(model.named_parameters()) == masters
    assert not model._forward_pre_hooks
    assert model(torch.ones(1, 4)).dtype == torch.float32


def test_recurrent_modules_see_the_halves() -> None:
    # They hold on to their weights in a list of their own.
    model = nn.LSTM(4, 4)
    masters, half = list(model.parameters()), HalfWeights(model)
    found, _ = model(torch.randn(3, 1, 4))
    assert found.dtype == torch.bfloat16
    found.sum().backward()
    half.collect()
    assert all(master.grad is not None for master in masters)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.ones(1), torch.bfloat16),
        (torch.ones(1, dtype=torch.float64), torch.bfloat16),
        (torch.ones(1, dtype=torch.int64), torch.int64),
        (torch.ones(1, dtype=torch.bool), torch.bool),
    ],
)
def test_floating_inputs_become_half_and_others_stay(value: torch.Tensor, expected: torch.dtype) -> None:
    (positional,), named = to_half(nn.Identity(), (value,), {"named": value})
    assert positional.dtype == named["named"].dtype == expected


@pytest.mark.parametrize("value", ["text", None, 3, (1, 2)])
def test_what_is_no_tensor_passes(value: Any) -> None:
    assert to_half(nn.Identity(), (value,), {}) == ((value,), {})
