"""Batches whose rows are taken in parts, one after another: the mathematics of the whole batch."""

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import RESIDENT
from dovetail.vocabulary import TechniqueRefused
from tests.train import ranked

CPU = torch.device("cpu")

SEEN = []  # a loss may write to what stands here


def opened(program, *, microbatches=1):
    knobs = {"microbatches": microbatches}
    return RESIDENT.open([programs.fresh(program)], device=CPU, threads=1, knobs=knobs)


def run(session, steps=6):
    losses = [float(session.advance()[0].loss) for _ in range(steps)]
    return losses, dict(session.state().tensors)


@pytest.mark.parametrize("microbatches", [2, 3, 64])
@pytest.mark.parametrize(
    "program",
    [
        ranked.small_batches,
        ranked.forked,
        ranked.submodules_called,
        ranked.in_place,
        ranked.unfolded,
        ranked.penalised,
        programs.dropout,
        programs.accumulate,
        programs.frozen,
        programs.recompute,
        programs.tied,
    ],
)
def test_parts_give_what_whole_batches_give(program, microbatches):
    losses, tensors = run(opened(program))
    found, theirs = run(opened(program, microbatches=microbatches))
    assert found == pytest.approx(losses, rel=1e-5)
    assert theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.allclose(theirs[name], tensor, rtol=1e-5, atol=1e-6), name


def test_bf16_weights_collect_the_gradients_of_each_part_in_float32():
    losses, _ = run(opened(ranked.half))
    found, _ = run(opened(ranked.half, microbatches=2))
    assert found == pytest.approx(losses, rel=2e-2)


def test_no_more_rows_are_seen_at_once_than_a_part_has():
    member = programs.fresh(programs.dropout)
    loss = member.training.loss
    SEEN.clear()

    def watched(model, batch):
        SEEN.append(len(batch[0]))
        return loss(model, batch)

    member.training.loss = watched
    total = len(next(iter(member.training.batches))[0])
    RESIDENT.open([member], device=CPU, threads=1, knobs={"microbatches": 4}).advance()
    assert max(SEEN) == max(2, -(-total // 4))


def kept_bytes(microbatches):
    """The most that the forward of one part keeps for its backward, as storage, besides weights."""
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    member = programs.fresh(lambda: ranked.training(model, programs.squared, rows=(16,)))
    SEEN.clear()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    loss = member.training.loss

    def watched(model, batch):
        kept = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = loss(model, batch)
        SEEN.append(sum(size for address, size in kept.items() if address not in weights))
        return value

    member.training.loss = watched
    session = RESIDENT.open([member], device=CPU, threads=1, knobs={"microbatches": microbatches})
    session.advance()
    session.close()
    return max(SEEN)


def test_a_part_keeps_its_own_rows_for_backward_and_nothing_of_the_others():
    assert kept_bytes(4) < kept_bytes(1) / 3


def test_whoever_begins_with_whole_batches_goes_on_with_parts_and_back():
    whole = opened(programs.dropout)
    expected = [float(whole.advance()[0].loss) for _ in range(6)]
    state, found = None, []
    for microbatches in (1, 2, 1):
        session = opened(programs.dropout, microbatches=microbatches)
        if state is not None:
            session.load(state)
        found += [float(session.advance()[0].loss) for _ in range(2)]
        state = session.state()
        session.close()
    assert found == pytest.approx(expected, rel=1e-5)


def test_metrics_are_of_the_whole_batch():
    (expected,), (found,) = (opened(ranked.metrics, microbatches=n).advance() for n in (1, 2))
    assert {name: float(value) for name, value in found.metrics.items()} == pytest.approx(
        {name: float(value) for name, value in expected.metrics.items()}
    )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ranked.contrastive, "must be the mean over its rows"),
        (ranked.summed, "must be the mean over its rows"),
        (ranked.drawing_in_the_loss, "nothing but dropout modules may draw"),
        (ranked.averaging, "forward must change neither buffers nor weights"),
        (ranked.writing, "forward must change neither buffers nor weights"),
        (ranked.drawing_before_a_dropout, "nothing but dropout modules may draw"),
        (ranked.worst, "a metric must be a mean or a sum over rows .* 'worst' is neither"),
        (ranked.ragged, "the same first dimension"),
        (programs.norm, "are those of a whole batch"),
        (programs.adversarial, "cannot run a step function of the program's own"),
    ],
)
def test_what_cannot_be_taken_in_parts_is_refused(program, reason):
    with pytest.raises(TechniqueRefused, match=reason):
        opened(program, microbatches=2).advance()


@pytest.mark.parametrize("program", [ranked.padded_later, ranked.padded_unseen])
def test_a_loss_that_shows_later_to_be_no_mean_is_refused_then(program):
    session = opened(program, microbatches=2)
    session.advance()
    with pytest.raises(TechniqueRefused, match="must be the mean over its rows"):
        list(map(session.advance, [(0,)] * 16))


def test_one_row_that_does_not_fit_is_told_so():
    member = programs.fresh(programs.dropout)
    loss = member.training.loss

    def tight(model, batch):
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("out of memory")
        return loss(model, batch)

    member.training.loss = tight
    for microbatches in (2, 64):
        session = RESIDENT.open([member], device=CPU, threads=1, knobs={"microbatches": microbatches})
        with pytest.raises(torch.OutOfMemoryError, match="out of memory") as error:
            session.advance()
        assert error.value.is_smallest == (microbatches == 64)
        session.close()


def test_dropouts_are_as_they_were_once_it_is_closed():
    member = programs.fresh(programs.dropout)
    before = [type(module) for module in member.training.model.modules()]
    session = RESIDENT.open([member], device=CPU, threads=1, knobs={"microbatches": 2})
    session.advance()
    session.close()
    assert [type(module) for module in member.training.model.modules()] == before
