"""The bench of convergence fails where training does not converge."""

import math

from convergence import bars_of

GOOD = [2.3, 1.9, 1.5]


def missed(*curves: list[float]) -> list[str]:
    return [bar.name for bar in bars_of([GOOD, *curves]) if not bar.met()]


def test_falling_losses_meet_the_bars() -> None:
    assert missed() == []
    assert missed([2.3, 2.4, 2.2]) == []


def test_infinity_and_what_is_no_number_are_missed() -> None:
    assert "runs with a loss that is not finite" in missed([2.3, math.inf, 1.0])
    assert len(missed([2.3, 2.0, math.nan])) == 2


def test_a_loss_that_rises_is_missed() -> None:
    assert missed([2.3, 2.0, 2.4]) == ["runs that end with no less loss than they began with"]
    assert missed([2.3, 2.3, 2.3]) == ["runs that end with no less loss than they began with"]
