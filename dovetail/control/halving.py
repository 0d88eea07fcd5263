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
    return None if any(_is_behind(one, rung) for one in progress.values()) else rung


def survivors(halving: Halving, scores: Mapping[str, float]) -> set[str]:
    """The best 1/factor of the tasks at a rung, at least one; ties and NaN go by name, NaN last.

    >>> sorted(survivors(Halving(metric="m", first_steps=1, factor=2), {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.2}))
    ['b', 'c']
    """
    sign = -1.0 if halving.goal == "max" else 1.0

    def rank(task: str) -> tuple[bool, float, str]:
        score = scores[task]
        # NaN is neither less nor more than NaN: it must not decide between two that both have it.
        return (True, 0.0, task) if math.isnan(score) else (False, sign * score, task)

    return set(sorted(scores, key=rank)[: max(1, len(scores) // halving.factor)])


def _is_behind(one: Progress, rung: int) -> bool:
    if one.status in (*ENDED, "resting"):
        return False
    # A task reports its last step before it reports that it rests there, with what it is judged by.
    arriving = one.status == "running" and bool(one.spans) and one.spans[-1].until_step <= rung
    return one.step < rung or arriving
