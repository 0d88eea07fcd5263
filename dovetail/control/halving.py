"""Successive halving: who goes on past a rung. Pure; the loop asks and records."""

import math
from collections.abc import Iterable, Mapping

from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary import Halving, Population, TaskId


def target(
    halving: Halving | Population | None, *, promoted_step: int, saved_step: int, last_step: int
) -> tuple[int, bool]:
    """To which step a task goes next, and whether that is its end.

    That is the first rung it was not promoted from; one that it reached but was never judged at is still ahead.

    >>> rule = Halving(metric="accuracy", first_steps=10)
    >>> target(rule, promoted_step=0, saved_step=10, last_step=100)
    (10, False)
    >>> target(rule, promoted_step=10, saved_step=10, last_step=100)
    (30, False)
    """
    rungs = halving.rungs(last_step) if halving else ()
    later = [rung for rung in rungs if rung > promoted_step and rung >= saved_step]
    return (later[0], False) if later else (last_step, True)


def complete_rung(progress: Mapping[TaskId, Progress]) -> int | None:
    """The lowest rung at which some task rests and which every task that still runs has reached, if any."""
    resting = [one.step for one in progress.values() if one.status == "resting"]
    if not resting:
        return None
    rung = min(resting)
    return None if any(_is_behind(one, rung) for one in progress.values()) else rung


def goes_on(halving: Halving, value: float, arrived: Iterable[float]) -> bool:
    """Whether a task that comes to a rung with this value goes on at once, by asynchronous halving: it is among the
    best 1/factor of those that have `arrived` there, itself included, or the best.

    >>> rule = Halving(metric="m", first_steps=1, factor=2, asynchronous=True)
    >>> goes_on(rule, 0.5, []), goes_on(rule, 0.4, [0.5]), goes_on(rule, 0.45, [0.5, 0.4, 0.3])
    (True, False, True)
    """
    # One that is no better than another that came before it is the other's equal, not its better.
    scores = {TaskId(f"a{number}"): other for number, other in enumerate(arrived)} | {TaskId("b"): value}
    return TaskId("b") in survivors(halving, scores)


def survivors(halving: Halving, scores: Mapping[TaskId, float]) -> set[TaskId]:
    """The best 1/factor of the tasks at a rung, at least one; ties and NaN go by name, NaN last.

    >>> sorted(survivors(Halving(metric="m", first_steps=1, factor=2), {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.2}))
    ['b', 'c']
    """
    sign = -1.0 if halving.goal == "max" else 1.0

    def rank(task: TaskId) -> tuple[bool, float, str]:
        score = scores[task]
        # NaN is neither less nor more than NaN: it must not decide between two that both have it.
        return (True, 0.0, task) if math.isnan(score) else (False, sign * score, task)

    return set(sorted(scores, key=rank)[: max(1, len(scores) // halving.factor)])


def _is_behind(one: Progress, rung: int) -> bool:
    if one.status in (*ENDED, "resting"):
        return False
    # At the rung and not promoted: it has taken its last step, or was lost right after, and is still to be judged.
    return one.step < rung or (one.step == rung and one.promoted_step < rung)
