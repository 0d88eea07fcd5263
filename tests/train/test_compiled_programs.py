"""What a program compiles itself is found where it lies, and refused where draws in it could not be followed."""

import pytest
import torch
from torch import nn

from dovetail.train.compiled_programs import refuse_compiled_draws, runs_compiled


class Noisy(nn.Module):
    def __init__(self, rate=0.5):
        super().__init__()
        self.inner, self.dropout = nn.Linear(4, 4), nn.Dropout(rate)

    def forward(self, x):
        return self.dropout(self.inner(x)) + 1


class Attention(nn.Module):
    """As those of transformers: its rate is a number that it hands on."""

    def __init__(self, rate):
        super().__init__()
        self.attention_dropout = rate

    def forward(self, x):
        return nn.functional.dropout(x, self.attention_dropout if self.training else 0.0)


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_dropout = 0.0

    def forward(self, x):
        return nn.functional.dropout(x, 0.1)


def test_what_draws_within_something_compiled_is_named():
    model = nn.Sequential(nn.Linear(4, 4), Noisy())
    assert refuse_compiled_draws(model, None, name="shard") is None
    loss = torch.compile(lambda model, batch: model(batch).sum(), backend="eager")
    assert "for shard; '1" in str(refuse_compiled_draws(model, loss, name="shard"))
    model[0].compile(backend="eager")
    assert refuse_compiled_draws(model, None, name="shard") is None
    model[1].compile(backend="eager")
    assert "for shard; '1" in str(refuse_compiled_draws(model, None, name="shard"))
    assert "'_orig_mod.1" in str(refuse_compiled_draws(torch.compile(model, backend="eager"), None, name="shard"))


@pytest.mark.parametrize(
    ("module", "drops"),
    [
        (Noisy(), True),
        (Noisy(0.0), False),
        (Attention(0.1), True),
        (Attention(0.0), False),
        (Fixed(), True),
        (nn.RReLU(), True),
        (nn.Linear(2, 2), False),
    ],
)
def test_what_drops_nothing_may_be_compiled(module, drops):
    module.compile(backend="eager")
    assert (refuse_compiled_draws(module, None, name="shard") is not None) == drops


def test_a_loss_that_calls_what_is_compiled_is_found():
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="eager")
    helper = torch.compile(lambda found: found.mean(), backend="eager")

    def through(model, batch):
        return by_helper(model, batch)

    def by_helper(model, batch):
        return helper(model(batch))

    assert runs_compiled(lambda model, batch: compiled(batch).mean())
    assert runs_compiled(through)
    assert runs_compiled(helper)
    assert not runs_compiled(lambda model, batch: model(batch).mean())
    assert not runs_compiled(None)
