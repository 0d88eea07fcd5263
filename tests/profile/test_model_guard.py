import random

import numpy
import pytest
import torch
from torch import nn

from dovetail.profile.model_guard import hooks, untouched

CPU = torch.device("cpu")


def test_all_is_put_back_even_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    model[1].eval()
    model[0].weight.grad = torch.ones(2, 2)
    kept = model[0].weight.grad
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()

    def measure():
        with untouched(model, device=CPU), hooks() as handles:
            assert model[0].weight.grad is None
            handles.append(model.register_forward_hook(lambda *_: None))
            model.train()
            model(torch.randn(4, 2)).sum().backward()
            random.random(), numpy.random.rand()
            raise KeyError

    with pytest.raises(KeyError):
        measure()
    assert [module.training for module in model] == [True, False, True]
    assert model[0].weight.grad is kept
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert not model._forward_hooks


def test_buffers_that_were_replaced_or_cannot_be_written():
    model = nn.Module()
    model.register_buffer("replaced", torch.zeros(2))
    model.register_buffer("expanded", torch.zeros(1).expand(4))
    with untouched(model, device=CPU):
        model.replaced = torch.ones(2)
    assert torch.equal(model.replaced, torch.zeros(2))


@pytest.mark.gpu
def test_the_model_comes_home():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = nn.BatchNorm1d(2)
    before = torch.cuda.get_rng_state()
    with untouched(model, device=torch.device("cuda")):
        assert model.weight.is_cuda
        model(torch.randn(4, 2, device="cuda"))
    assert not model.weight.is_cuda
    assert int(model.num_batches_tracked) == 0
    assert torch.equal(before, torch.cuda.get_rng_state())
