import json

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.testing import programs
from dovetail.train.state import capture, pack, restore, unpack
from dovetail.vocabulary import CheckpointError

plain = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
)  # every float, NaN and infinities too
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
tensors = st.builds(
    lambda shape, dtype: torch.arange(int(numpy.prod(shape))).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtypes,
)
arrays = st.builds(numpy.arange, st.integers(0, 4))
keys = st.text(alphabet="ab/1", max_size=3) | st.integers(0, 12) | st.tuples(st.integers(0, 2), st.text(max_size=1))
trees = st.recursive(
    plain | tensors | arrays,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other or one != one


@settings(max_examples=150, deadline=None)
@given(trees)
def test_what_is_packed_comes_back(tree):
    found = {}
    packed = json.loads(json.dumps(pack(tree, "x", found), allow_nan=False))
    assert same(unpack(packed, found), tree)


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.float32, 1j])
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(CheckpointError, match="must be tensors and plain data; x/a is a"):
        pack({"a": value}, "x", {})


def state_of(training):
    return capture(training, step=0, feed=None, random={})


def test_tied_tensors_are_kept_once():
    state = state_of(programs.fresh("tied").training)
    assert "model/embedding.weight" in state.tensors
    assert "model/head.weight" not in state.tensors
    assert sum(name.startswith("model/") for name in state.tensors) == 3


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        ("norm", "dropout", "the model tensors that the program builds must be those of the checkpoint"),
        ("adversarial", "momentum", "the model tensors"),
    ],
)
def test_a_state_of_another_model_is_refused(saved, own, message):
    with pytest.raises(CheckpointError, match=message):
        restore(programs.fresh(own).training, state_of(programs.fresh(saved).training))


def test_a_state_of_another_shape_is_refused():
    training = programs.fresh("momentum").training
    state = state_of(training)
    state.tensors["model/0.weight"] = torch.zeros(8, 5)
    with pytest.raises(CheckpointError, match=r"shape of '0.weight'.*has \(8, 5\), the program \(8, 4\)"):
        restore(training, state)


def test_slots_of_another_shape_are_refused():
    training = programs.fresh("momentum").training
    for parameter in training.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    training.optimizer.step()
    state = state_of(training)
    (name,) = [name for name in state.tensors if name.endswith("momentum_buffer/0.weight")]
    restore(training, state)
    state.tensors[name] = torch.zeros(1, 4)  # would be spread over all rows
    with pytest.raises(CheckpointError, match=r"shape of momentum_buffer of '0.weight' in optimizer '.*has \(1, 4\)"):
        restore(training, state)


def test_a_state_of_another_optimizer_is_refused():
    state = state_of(programs.fresh("momentum").training)
    other = programs.fresh("momentum").training
    other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="parameter groups of optimizer ''"):
        restore(other, state)


def test_a_parameter_outside_the_model_is_refused():
    training = programs.fresh("momentum").training
    training.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(CheckpointError, match=r"must belong to Training.model; one of shape \(3,\)"):
        state_of(training)
