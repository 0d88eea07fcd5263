import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.testing.ranks import RankedConformance
from dovetail.train import RESIDENT, SHARD
from dovetail.train.shard import blocks
from dovetail.vocabulary import TechniqueRefused
from tests.train import ranked

pytestmark = pytest.mark.process

CPU = torch.device("cpu")


class TestShard(RankedConformance):
    technique = SHARD
    tolerance = 1e-5


def run(session, steps=6):
    losses = [float(session.advance()[0].loss) for _ in range(steps)]
    return losses, dict(session.state().tensors)


@pytest.mark.parametrize(
    ("program", "rounding"),
    [
        (ranked.small_batches, 1e-5),
        (ranked.submodules_called, 1e-5),
        (ranked.in_place, 1e-5),
        (ranked.eager_optimizer, 1e-5),
        (ranked.half, 2**-7),
    ],
)
def test_one_device_gives_the_same(followers, program, rounding):
    losses, tensors = run(RESIDENT.open([programs.fresh(program)], device=CPU, threads=1))
    found, theirs = run(followers.open(SHARD, program))
    assert found == pytest.approx(losses, rel=rounding)
    assert theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert theirs[name].dtype == tensor.dtype
        assert torch.allclose(theirs[name], tensor, rtol=rounding, atol=rounding / 10), name


def test_an_evaluation_sees_whole_weights(followers):
    alone = RESIDENT.open([programs.fresh(ranked.evaluated)], device=CPU, threads=1)
    session = followers.open(SHARD, ranked.evaluated)
    for _ in range(3):
        assert session.evaluate() == pytest.approx(alone.evaluate(), rel=1e-5)
        alone.advance()
        session.advance()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ranked.contrastive, "must be the mean over its rows"),
        (ranked.penalised, "must be used by the forward of the module that holds it"),
    ],
)
def test_what_cannot_be_split_is_refused_by_all_ranks_at_the_first_step(followers, program, reason):
    session = followers.open(SHARD, program)
    with pytest.raises(TechniqueRefused, match=reason) as refusal:
        session.advance()
    assert followers.errors() == [f"TechniqueRefused: {refusal.value}"]


def test_ranks_that_built_unlike_weights_are_refused(followers):
    with pytest.raises(TechniqueRefused, match="the same weights in every process"):
        followers.open(SHARD, ranked.unlike_weights)


def test_each_rank_has_a_part_of_weights_and_of_optimizer_state(followers):
    session = followers.open(SHARD, "dropout")
    session.advance()
    optimizer = session._training.optimizer
    for parameter in session._training.model.parameters():
        own = parameter.to_local()
        # Cut along the first dimension: one that has a single row is whole on one rank and absent on the other.
        assert len(own) == (len(parameter) + 1) // 2
        assert optimizer.state[parameter]["exp_avg"].to_local().shape == own.shape


def test_a_parameter_without_dimensions_is_refused():
    model = nn.Linear(4, 1)
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    member = programs.fresh(lambda: ranked.training(model, programs.squared))
    assert "'scale' has no dimension" in SHARD.refuse([member])


class Tower(nn.Module):
    def __init__(self, *, tied):
        super().__init__()
        self.embedding = nn.Embedding(64, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 64, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


@pytest.mark.parametrize("tied", [False, True])
def test_blocks_are_layers_and_what_else_is_large_and_has_its_weights_to_itself(tied):
    model = Tower(tied=tied)
    large = [] if tied else [model.embedding, model.head]
    found = list(blocks(model))
    assert {id(block) for block in found} == {id(block) for block in (*model.layers, *large)}
