"""Backward in two has the bits of one backward, or is refused before any gradient is used."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dovetail.train.pipeline.deferred_gradients import Deferred
from dovetail.vocabulary import TechniqueRefused


class Twice(nn.Module):
    """A layer whose weight is used once more outside of it."""

    def __init__(self, *, outside):
        super().__init__()
        self.layer, self.outside = nn.Linear(3, 3), outside

    def forward(self, x):
        x = torch.tanh(self.layer(x))
        return F.linear(x, self.layer.weight) if self.outside else self.layer(x)


class Attending(nn.Module):
    """A layer that is never called: its weights are used by the module that holds it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def gradients(model, batches, *, split):
    model.zero_grad()
    deferred = Deferred(dict(model.named_modules())) if split else None
    try:
        for number, batch in enumerate(batches):
            loss = model(batch).square().mean()
            if deferred is None:
                loss.backward()
                continue
            with deferred.putting_off(number):
                loss.backward()
            deferred.catch_up(number)
    finally:
        if deferred is not None:
            deferred.close()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("model", [Twice(outside=False), Attending()], ids=["called twice", "attention"])
def test_backward_in_two_has_the_same_bits(model):
    batches = [torch.randn(2, 3, next(model.parameters()).shape[1]) for _ in range(3)]
    whole, parts = (gradients(model, batches, split=split) for split in (False, True))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_weight_with_a_use_outside_of_its_layer_is_refused_by_name():
    model = Twice(outside=True)
    with pytest.raises(TechniqueRefused, match=r"'layer\.weight' is also used outside of it"):
        gradients(model, [torch.randn(2, 3)], split=True)
    # And nothing is left of it behind.
    assert gradients(model, [torch.randn(2, 3)], split=False)
    assert "forward" not in vars(model.layer)
