import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dovetail.profile.family_digest import fingerprint, versions
from tests.profile.programs import Net, mean_square, training


class Tanh(Net):
    """The same tensors, another function."""

    def forward(self, x):
        return self.head(self.stem(x).tanh())


def mean_absolute(model, batch):
    return model(batch["x"]).abs().mean()


def family(batch_size=16, **options):
    return fingerprint(training(**options), {"x": torch.zeros(batch_size, 4)}).family


def test_rates_and_seeds_share_a_family():
    assert family() == family(learning_rate=0.5) == family(seed=7)
    assert family() == family(options={"weight_decay": 0.3, "betas": (0.8, 0.9)})


@pytest.mark.parametrize(
    "options",
    [
        {"width": 9},
        {"depth": 3},
        {"batch_size": 17},
        {"optimizer": torch.optim.Adam},
        {"options": {"amsgrad": True}},
        {"precision": "bf16"},
        {"loss": mean_absolute},
        {"accumulate": 2},
        {"clip_norm": 1.0},
        {"evaluate_every": 5},
        {"evaluate": lambda model: {"a": 1.0}},
    ],
)
def test_what_changes_the_work_changes_the_family(options):
    assert family(**options) != family()


def test_dropout_counts_by_being_there():
    def of(rate, *, inplace=False):
        built = training()
        built.model.stem = nn.Sequential(built.model.stem, nn.Dropout(rate, inplace=inplace))
        return fingerprint(built, {"x": torch.zeros(16, 4)}).family

    assert of(0.1) == of(0.25) != of(0.0)
    assert of(0.1) != of(0.1, inplace=True)


def test_momentum_counts_by_being_there():
    def of(momentum):
        return family(optimizer=torch.optim.SGD, options={"momentum": momentum})

    assert of(0.9) == of(0.8) != of(0.0)


def test_source_frozen_and_tied_parameters_count():
    plain = training()
    other, frozen, tied, counting = training(), training(), training(), training()
    other.model.__class__ = Tanh
    frozen.model.stem.weight.requires_grad_(False)
    tied.model.body[1].weight = tied.model.body[0].weight
    counting.model.rounds = 3
    batch = {"x": torch.zeros(16, 4)}
    families = [fingerprint(each, batch).family for each in (plain, other, frozen, tied, counting)]
    assert len(set(families)) == 5


def test_what_else_it_tells():
    found = fingerprint(training(evaluate=lambda model: {}), {"x": torch.zeros(1)})
    assert (found.steps_per_epoch, found.evaluates) == (2, True)


def test_lazy_modules_have_a_family_too():
    model = nn.LazyLinear(3)
    lazy = training(loss=mean_square)
    lazy.model = model
    assert len(fingerprint(lazy, torch.zeros(1)).family) == 16


def test_versions_name_the_packages_of_the_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    found = training()
    found.model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2))
    assert "transformers" in versions(found)
    assert "transformers" not in versions(training())


@pytest.mark.process
def test_equal_in_every_process():
    code = "from tests.profile.test_family_digest import *; print(family(), family(evaluate=lambda m: m in {'a', 'b'}))"
    root = Path(__file__).parents[2]
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert found[0][0] == family()
