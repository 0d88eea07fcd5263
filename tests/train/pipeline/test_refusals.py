"""What cannot be a pipeline is refused before anything is trained, on all ranks."""

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import PIPELINE, RESIDENT
from dovetail.train.pipeline.row_division import RowDivision
from dovetail.vocabulary import TechniqueRefused
from tests.train import ranked
from tests.train.pipeline import towers
from tests.train.pipeline.comparing import CPU

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"timetable": "2bw", "microbatches": 1}, "at least as many microbatches in a step as stages"),
        ({"timetable": "2bw", "microbatches": 4, "spare": "one"}, "a whole number, 0 or more, got 'one'"),
        ({"timetable": "1f1d"}, r"must be one of \['1f1b', '2bw', .*got '1f1d'"),
        ({"replicas": (1, 2)}, r"\[1, 2\] are 3 ranks, there are 2"),
        ({"stages": (("0",), ("1",), ("2",))}, "layers for each of 2 stages, got 3"),
        ({"timetable": "interleaved"}, "a multiple of its 2 ranks as microbatches"),
        ({"depth": 2}, r"got \['depth'\]"),
        ({"timetable": "zero_bubble", "replicas": (2,), "microbatches": 2}, "must have one rank for each stage"),
        ({"timetable": "stashing", "replicas": (2,)}, "a multiple of every stage's replicas"),
    ],
)
def test_knobs(followers, knobs, reason):
    with pytest.raises(TechniqueRefused, match=reason) as refusal:
        followers.open(PIPELINE, "momentum", knobs=knobs)
    assert followers.errors() == [f"TechniqueRefused: {refusal.value}"]


def test_microbatches_that_do_not_go_into_what_is_accumulated(followers):
    with pytest.raises(TechniqueRefused, match="a multiple of the 2 batches it accumulates, got 3"):
        followers.open(PIPELINE, "accumulate", knobs={"microbatches": 3})
    followers.errors()


def short():
    return ranked.training(nn.Sequential(nn.Linear(4, 1)), programs.squared)


@pytest.mark.parametrize(
    ("program", "knobs", "reason"),
    [
        (short, {}, "it has 1 layers, and 2 stages are asked for"),
        ("momentum", {"microbatches": 3}, "one of 8 rows cannot be divided into 3"),
        (ranked.contrastive, {"microbatches": 2}, "must be the mean over its rows"),
        (ranked.unlike_batches, {}, "the same (batches|weights) in every process"),
        (towers.late, {}, "draws after the call"),
        (towers.unkeyed, {}, "draws from Python's or NumPy's"),
        ("tied", {"timetable": "stashing"}, "'embedding.weight' is used by stages"),
    ],
)
def test_programs(followers, program, knobs, reason):
    with pytest.raises(TechniqueRefused, match=reason) as refusal:
        followers.open(PIPELINE, program, knobs=knobs).advance()
    assert followers.errors() == [f"TechniqueRefused: {refusal.value}"]


def test_ranks_that_disagree(followers):
    followers._part()
    followers._ends[0].send((PIPELINE, "accumulate", {"timetable": "gpipe"}))
    with pytest.raises(TechniqueRefused, match="all ranks must be given the same stages"):
        PIPELINE.among(followers.ranks).open([programs.fresh("accumulate")], device=CPU, threads=1)
    assert "all ranks must be given the same stages" in followers.errors()[0]


def test_norms_over_a_batch_are_not_divided():
    member = programs.fresh("norm")
    with pytest.raises(TechniqueRefused, match=r"the statistics of '1' \(BatchNorm1d\) are those of a whole batch"):
        RowDivision(member, 2, generator=torch.default_generator)


@pytest.mark.parametrize("timetable", ["1f1b", "gpipe"])
def test_a_divided_batch_is_trained_as_the_whole(followers, timetable):
    program = towers.of(microbatches=1)
    alone = RESIDENT.open([programs.fresh(program)], device=CPU, threads=1)
    expected = [float(alone.advance()[0].loss) for _ in range(6)]
    session = followers.open(PIPELINE, program, knobs={"timetable": timetable, "microbatches": 4})
    assert [float(session.advance()[0].loss) for _ in range(6)] == pytest.approx(expected, rel=1e-5)


def test_replicas_keep_no_statistics(followers):
    knobs = {"replicas": (2,), "microbatches": 2}

    with pytest.raises(TechniqueRefused, match="the statistics of '1'"):
        followers.open(PIPELINE, "norm", knobs=knobs)
    followers.errors()
