"""Evaluations over shards: what they give in one place, in parts, and what they refuse."""

import random

import numpy
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.train.randomness import KeyedRandomness, reseed
from dovetail.train.shard_evaluation import EvaluationVisit
from dovetail.vocabulary import ProgramError

VALUES = {"a": [1e16, 1.0], "b": [-1e16], "c": [3.0]}


def evaluation(measure=None, names="abc"):
    pieces = [dt.DataShard(name=name, url=f"memory://{name}", batches=len(VALUES[name])) for name in names]
    shards = dt.Shards(pieces, read=lambda place: VALUES[place.removeprefix("memory://")])
    return dt.ShardEvaluation(
        shards, measure or (lambda model, batches: {"mean": (sum(found := [*batches]), len(found))})
    )


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_parts_in_any_order_give_what_one_place_gives(order):
    """Of these floats another order of addition would have another sum: 3 or 0 instead of 2."""
    whole = evaluation()(nn.Identity())
    found = {}
    for number, name in enumerate(order):
        visit = EvaluationVisit(evaluation(), shard=name, found=found)
        assert visit.is_last == (number == 2)
        metrics = visit(nn.Identity())
        found = visit.found
    assert metrics == whole
    assert whole["mean"] == ((1e16 + 1.0) + -1e16 + 3.0) / 4


class Drawing(nn.Module):
    """Draws from each generator there is, also from its key as a module."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, batch):
        noise = random.random() + float(numpy.random.rand()) + float(torch.rand(()))
        return noise + float(self.drop(torch.full((8,), batch)).sum())


def test_what_is_drawn_is_the_same_wherever_a_shard_is_evaluated():
    def measure(model, batches):
        model.drop.train()  # as those do who sample
        return {"noise": (sum(model(batch % 7) for batch in batches), 1)}

    host = torch.device("cpu")
    with KeyedRandomness(model := Drawing(), seed=3, device=host).evaluation(step=5):
        whole = evaluation(measure)(model)
    found = {}
    for name in "cba":
        reseed(name)  # another process has drawn something else before
        visit = EvaluationVisit(evaluation(measure), shard=name, found=found)
        with KeyedRandomness(model := Drawing(), seed=3, device=host).evaluation(step=5):
            metrics = visit(model)
        found = visit.found
    assert metrics == whole
    assert len({total for sums in found.values() for total, _ in sums.values()}) == 3


def test_what_no_metrics_come_of_is_named():
    for measure, message in (
        (lambda model, batches: {"accuracy": 0.5}, "must give a dict of a sum and a count by metric.*on shard 'a'"),
        (lambda model, batches: {"accuracy": (0.0, 0)}, "must count more than 0 for metric 'accuracy', got 0"),
    ):
        with pytest.raises(ProgramError, match=message):
            evaluation(measure)(nn.Identity())
    with pytest.raises(ProgramError, match=r"must have dt.Shards and a function measure\(model, batches\), got a list"):
        dt.ShardEvaluation([], print)
    model = nn.Linear(1, 1)
    fields = {"model": model, "loss": lambda m, b: m(b).mean(), "optimizer": torch.optim.SGD(model.parameters())}
    with pytest.raises(
        ProgramError, match=r"over shards must go with batches that are dt.Shards.*got batches of type list"
    ):
        dt.Training(batches=[torch.ones(1, 1)], evaluate=evaluation(), **fields)


def test_a_trial_evaluates_on_what_its_node_has_and_knows_which_part_that_is(tmp_path):
    here = tmp_path / "here"
    here.touch()
    pieces = [dt.DataShard(name=name, path=str(tmp_path / name), batches=n) for name, n in (("here", 1), ("away", 3))]
    shards = dt.Shards(pieces, read=lambda place: [2.0])
    whole = dt.ShardEvaluation(shards, lambda model, batches: {"sum": (sum(batches), 1)})
    found, part = whole.here()
    assert (found(nn.Identity()), part) == ({"sum": 2.0}, 0.25)
    here.unlink()
    assert whole.here() is None
