"""Approximate steps over several ranks: what they keep is whole in checkpoints, and goes on anywhere."""

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import PIPELINE, REPLICATE, RESIDENT, SHARD, Training, checkpoint
from dovetail.train.numeric import open_session
from dovetail.vocabulary import TechniqueRefused

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
EIGHT = {"approximate": "state-8bit"}
HALF = {"approximate": "state-bf16"}
STEPS = 3


def wide(inside: int = 128) -> Training:
    model = nn.Sequential(nn.Linear(64, inside), nn.Tanh(), nn.Dropout(0.1), nn.Linear(inside, 64))
    batches = [torch.randn(8, 64, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Training(model=model, batches=batches, loss=lambda m, b: ((m(b) - b) ** 2).mean(), optimizer=optimizer)


def uneven() -> Training:
    return wide(inside=131)


def opened(technique, followers, knobs=EIGHT):
    if technique.ranked:
        return followers.open(technique, wide, knobs=knobs)
    return open_session(technique, [programs.fresh(wide)], device=CPU, threads=1, knobs=knobs)


def steps(session):
    return [float(session.advance([0])[0].loss) for _ in range(STEPS)]


def equal(one, other):
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(one.tensors[name], tensor) for name, tensor in other.tensors.items()
    )


@pytest.mark.parametrize(
    ("technique", "knobs"), [(SHARD, EIGHT), (SHARD, HALF), (REPLICATE, EIGHT), (PIPELINE, EIGHT)], ids=str
)
def test_a_state_goes_through_a_technique_as_it_is(technique, knobs, followers, tmp_path):
    home = opened(RESIDENT, followers, knobs)
    steps(home)
    path, _ = checkpoint.write(tmp_path, home.state(), task="wide", attempt=1)
    away = opened(technique, followers, knobs)
    away.load(checkpoint.read(path))
    assert equal(away.state(), home.state())
    assert steps(away) == pytest.approx(steps(home), rel=1e-3)
    kept = away.state().tensors["optimizer//exp_avg/0.weight"].dtype
    assert kept == (torch.uint8 if knobs is EIGHT else torch.bfloat16)
    assert equal(away.state(), away.state())
    back = opened(RESIDENT, followers, knobs)
    back.load(away.state())
    assert equal(back.state(), away.state())


@pytest.mark.parametrize("knobs", [EIGHT, HALF], ids=str)
def test_stopped_and_resumed_it_is_as_undisturbed(knobs, followers, tmp_path):
    whole = opened(SHARD, followers, knobs)
    expected = steps(whole) + steps(whole)
    last = whole.state()
    first = opened(SHARD, followers, knobs)
    losses = steps(first)
    path, _ = checkpoint.write(tmp_path, first.state(), task="wide", attempt=1)
    second = opened(SHARD, followers, knobs)
    second.load(checkpoint.read(path))
    assert losses + steps(second) == expected
    assert equal(second.state(), last)


@pytest.mark.parametrize("knobs", [EIGHT, HALF], ids=str)
def test_a_rank_rounds_its_part_as_one_device_would(knobs, followers):
    """Gradients that are the same bits on both: each rank has all rows of them."""
    one, many = (opened(each, followers, knobs) for each in (RESIDENT, SHARD))
    start = one.state()
    many.load(start)
    for session in (one, many):
        session.advance([0])
    alone, cut = one.state().tensors, many.state().tensors
    near = [name for name in alone if name.startswith("optimizer//exp_avg/") and alone[name].dim() == 2]
    assert near
    for name in near:  # but for sums over rows, which differ by their last bits, so that few are rounded otherwise
        assert (alone[name].float() != cut[name].float()).float().mean() < 0.02, name


def test_a_parameter_that_is_cut_within_a_block_is_refused(followers):
    session = followers.open(SHARD, uneven, knobs=EIGHT)
    with pytest.raises(TechniqueRefused, match="must be cut between them; one of shape"):
        session.advance([0])
    assert "must be cut between them" in followers.errors()[0]
