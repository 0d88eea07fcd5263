import random

import numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dovetail.train.randomness import KeyedRandomness, key, reseed

CPU = torch.device("cpu")
parts = st.lists(st.integers() | st.text(alphabet="ab-.1"), min_size=1, max_size=4)


@given(parts, parts)
def test_keys_differ_where_their_parts_do(one, other):
    assert (key(*one) == key(*other)) == ([str(part) for part in one] == [str(part) for part in other])


@given(parts)
def test_keys_fit_every_generator(found):
    assert 0 <= key(*found) < 1 << 63
    reseed(*found)


def draws():
    return random.random(), numpy.random.rand(), float(torch.rand(()))


def test_all_three_generators_are_seeded():
    reseed(1, "a")
    first = draws()
    draws()
    reseed(1, "a")
    assert draws() == first
    reseed(2, "a")
    assert all(one != other for one, other in zip(draws(), first, strict=True))


def keyed(model, seed=0):
    return KeyedRandomness(model, seed=seed, device=CPU)


def mask(model, randomness, step=0, microbatch=0):
    randomness.begin(step, microbatch)
    return model(torch.ones(64))


def test_masks_depend_on_seed_step_microbatch_and_module():
    model = nn.Sequential(nn.Dropout(0.5))
    other = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    one = mask(model, keyed(model))
    assert torch.equal(one, mask(model, keyed(model)))
    changed = [
        mask(model, keyed(model, seed=1)),
        mask(model, keyed(model), step=1),
        mask(model, keyed(model), microbatch=1),
        mask(other, keyed(other)),
    ]
    assert not any(torch.equal(one, each) for each in changed)


def test_a_mask_does_not_depend_on_what_stands_before_it():
    # The same module in another process, without its neighbour, draws the same.
    pair = nn.ModuleDict({"first": nn.Dropout(0.5), "second": nn.Dropout(0.5)})
    randomness = keyed(pair)
    randomness.begin(0, 0)
    pair["first"](torch.ones(8))
    both = pair["second"](torch.ones(64))
    randomness.begin(0, 0)
    assert torch.equal(pair["second"](torch.ones(64)), both)


def test_a_module_called_twice_draws_twice():
    model = nn.Dropout(0.5)
    randomness = keyed(model)
    randomness.begin(0, 0)
    first, second = model(torch.ones(64)), model(torch.ones(64))
    assert not torch.equal(first, second)


def test_closing_removes_every_hook():
    model = nn.TransformerEncoderLayer(8, 2, dropout=0.1)
    randomness = keyed(model)
    assert any(module._forward_pre_hooks for module in model.modules())
    randomness.close()
    assert not any(module._forward_pre_hooks for module in model.modules())
