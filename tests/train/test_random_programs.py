"""Programs drawn at random end as a bare PyTorch loop ends, however they are stopped and moved; thousands of them by
`bench/random_programs.py`."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from random_programs import ALONE, GANGS, RANKED, Recipe, bare, differences, recipes, travel, verdict, ways

from dovetail.testing.ranks import Followers

PLAIN = Recipe(
    kind="vectors",
    layers=("linear", "dropout", "batch norm"),
    width=4,
    tied=False,
    frozen=False,
    optimizer="adamw",
    groups=2,
    schedule="by epoch",
    clip=0.1,
    accumulate=2,
    batches="loader",
    precision="fp32",
    how="loss",
)


# a failing program is printed as drawn: to make it smaller takes minutes
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(recipe=recipes(), way=ways((*ALONE, *GANGS)))
def test_in_one_process(recipe, way):
    said, _ = verdict(recipe, way)
    assert not said


@pytest.mark.process
@settings(max_examples=10, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(recipe=recipes(), way=ways((*RANKED, "resident")))
def test_among_ranks(recipe, way, followers: Followers):
    said, _ = verdict(recipe, way, followers)
    assert not said


def test_a_difference_is_found(tmp_path):
    found = travel(PLAIN, [("resident", 3), ("spill", 2)], tmp_path)
    assert differences(PLAIN, found) == ""
    found.state.tensors["model/body.0.weight"][0, 0] += 1e-7
    assert "bits of ['body.0.weight']" in differences(PLAIN, found)
    found.used.append("fuse")
    assert differences(PLAIN, found) == ""  # fuse rounds
    found.state.tensors["model/body.0.weight"][0, 0] += 1e-1
    assert "apart by" in differences(PLAIN, found)


def test_a_step_that_is_left_out_is_found(tmp_path):
    found = travel(PLAIN, [("resident", 3)], tmp_path)
    found.losses.append(bare(PLAIN, 4)[0][-1])
    assert differences(PLAIN, found)
