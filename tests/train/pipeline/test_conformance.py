import pytest

from dovetail.testing.ranks import RankedConformance
from dovetail.train import PIPELINE
from tests.train.pipeline.comparing import assert_equal

pytestmark = pytest.mark.process


class TestPipeline(RankedConformance):
    technique = PIPELINE


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("program", ["norm", "recompute", "dropout", "frozen"])
def test_what_a_step_changes_besides_weights_is_the_same(followers, program, recompute):
    assert_equal(followers.open(PIPELINE, program, knobs={"recompute": recompute}), program)
