"""The loop on the simulated engine and the bench's arithmetic of rounds alone come to the same."""

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from streams import simulate as count_rounds  # noqa: E402

from dovetail.control.simulation.simulating import simulate  # noqa: E402
from dovetail.control.simulation.workloads import draw  # noqa: E402
from dovetail.planning.options.kinds import parse_cluster  # noqa: E402
from dovetail.planning.share.policies import POLICIES  # noqa: E402


@pytest.mark.parametrize("moving", [0.0, 20.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_loop_agrees_with_arithmetic(seed: int, moving: float) -> None:
    """On one family, where no two optima differ but by names, to the second."""
    drawn = draw(30, per_hour=120.0, kinds=["v100", "k80"], seed=seed)
    family = drawn.arrivals[0].family
    arrivals = [
        dataclasses.replace(each, family=family, steps=each.steps // 40 + 1, task=f"t{number:02}")
        for number, each in enumerate(drawn.arrivals)
    ]
    how = {"options": drawn.options, "cluster": parse_cluster("3xv100+4xk80"), "policy": POLICIES["max_min_fairness"]}
    loop = simulate(arrivals, load_seconds=moving, checked=True, **how)
    alone = count_rounds(arrivals, move_seconds=moving, **how)
    assert loop.seconds == pytest.approx(alone.seconds, abs=1.0)
    assert loop.starts == pytest.approx(alone.moves, abs=1)
