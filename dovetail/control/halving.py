"""Successive halving: who goes on past a rung. Pure; the loop asks and records."""

import math
from collections.abc import Mapping

from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary import Halving


def target(halving: Halving | None, *, step: int, last_step: int) -> tuple[int, bool]:
    """To which step a task goes next, and whether that is its end.

    >>> target(Halving(metric="accuracy", first_steps=10), step=10, last_step=100)
    (30, False)
    """
    later = [rung for rung in halving.rungs(last_step) if rung > step] if halving else []
    return (later[0], False) if later else (last_step, True)


def complete_rung(progress: Mapping[str, Progress]) -> int | None:
    """The lowest rung at which some task rests and which every task that still runs has reached, if any."""
    resting = [one.step for one in progress.values() if one.status == "resting"]
    if not resting:
        return None
    rung = min(resting)
    behind = [one for one in progress.values() if one.status not in (*ENDED, "resting") and one.step < rung]
    return None if behind else rung


def survivors(halving: Halving, scores: Mapping[str, float]) -> set[str]:
    """The best 1/factor of the tasks at a rung, at least one; ties and NaN go by name, NaN last.

    >>> sorted(survivors(Halving(metric="m", first_steps=1, factor=2), {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.2}))
    ['b', 'c']
    """
    sign = -1.0 if halving.goal == "max" else 1.0
    ranked = sorted(scores, key=lambda task: (math.isnan(scores[task]), sign * scores[task], task))
    return set(ranked[: max(1, len(scores) // halving.factor)])
