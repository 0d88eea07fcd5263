import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.testing.ranks import RankedConformance
from dovetail.train import REPLICATE, RESIDENT
from dovetail.vocabulary import TechniqueRefused
from tests.train import ranked

pytestmark = pytest.mark.process

CPU = torch.device("cpu")


class TestReplicate(RankedConformance):
    technique = REPLICATE
    tolerance = 1e-5


def run(session, steps=6):
    losses = [float(session.advance()[0].loss) for _ in range(steps)]
    return losses, dict(session.state().tensors)


@pytest.mark.parametrize(
    "program",
    [
        ranked.small_batches,
        ranked.forked,
        ranked.submodules_called,
        ranked.in_place,
        ranked.eager_optimizer,
        ranked.unfolded,
        ranked.penalised,
    ],
)
def test_one_device_gives_the_same(followers, program):
    losses, tensors = run(RESIDENT.open([programs.fresh(program)], device=CPU, threads=1))
    found, theirs = run(followers.open(REPLICATE, program))
    assert found == pytest.approx(losses, rel=1e-5)
    assert theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.allclose(theirs[name], tensor, rtol=1e-5, atol=1e-6), name


def test_metrics_are_of_the_whole_batch(followers):
    (expected,) = RESIDENT.open([programs.fresh(ranked.metrics)], device=CPU, threads=1).advance()
    (found,) = followers.open(REPLICATE, ranked.metrics).advance()
    assert {name: float(value) for name, value in found.metrics.items()} == pytest.approx(
        {name: float(value) for name, value in expected.metrics.items()}
    )
    assert float(found.metrics["seen"]) == 7


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ranked.contrastive, "must be the mean over its rows"),
        (ranked.summed, "must be the mean over its rows"),
        (ranked.padded, "must be the mean over its rows"),
        (ranked.drawing_in_the_loss, "nothing but dropout modules may draw"),
        (ranked.averaging, "buffers must not depend on which rows a device has; 'seen' does"),
        (ranked.writing, "forward must leave weights as they are; it writes '0.mean'"),
        (ranked.drawing_before_a_dropout, "nothing but dropout modules may draw"),
        (ranked.worst, "a metric must be a mean or a sum over rows .* 'worst' is neither"),
        (ranked.ragged, r"the same first dimension, its rows, .*found \(float32\[8, 4\], float32\[7, 1\]\)"),
        (ranked.unlike_batches, "the same batches in every process"),
    ],
)
def test_what_cannot_be_split_is_refused_by_all_ranks_at_the_first_step(followers, program, reason):
    session = followers.open(REPLICATE, program)
    with pytest.raises(TechniqueRefused, match=reason) as refusal:
        session.advance()
    assert followers.errors() == [f"TechniqueRefused: {refusal.value}"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)), r"the statistics of '0' \(BatchNorm1d\)"),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.5), r"'the model' \(LSTM\) draws for a whole batch"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), r"\(MultiheadAttention\) draws for a whole batch"),
    ],
)
def test_what_needs_a_whole_batch_is_refused(model, reason):
    member = programs.fresh(lambda: ranked.training(model, programs.squared))
    with pytest.raises(TechniqueRefused, match=reason):
        REPLICATE.open([member], device=CPU, threads=1)
    model.eval()  # as from a hub; it is put into training mode as a whole
    assert REPLICATE.refuse([member])


def test_it_takes_ranks():
    with pytest.raises(TechniqueRefused, match="one process for each device, each with its rank"):
        REPLICATE.open([programs.fresh("momentum")], device=CPU, threads=1)


def test_dropouts_are_left_as_they_were(followers):
    session = followers.open(REPLICATE, "dropout")
    model = session._training.model
    session.advance()
    session.close()
    assert type(model[2]) is nn.Dropout
