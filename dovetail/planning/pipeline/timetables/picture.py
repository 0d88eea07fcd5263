"""Who computes which microbatch when, for a terminal: what was simulated, or what was measured as the
simulator would say it; of a pipeline that never runs empty, one step.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.planning.pipeline.timetables.actions import Action
from dovetail.planning.pipeline.timetables.timing import Simulated, Timed


def recorded(timed: Mapping[str, Any], *, flushes: bool) -> Simulated:
    """What the ranks did in one step, from the data of an event `timed`.

    >>> data = {"step": 5, "timetable": "1f1b", "microbatches": 1, "ranks": [[["forward", 0, 0, 2.0, 3.0]]]}
    >>> recorded(data, flushes=True).seconds
    1.0
    """
    ranks = tuple(tuple(_timed(row) for row in rank) for rank in timed["ranks"])
    found = _since(Simulated(name=timed["timetable"], ranks=ranks, held=()), None)
    # Of three steps that run into each other the one in the middle is whole.
    return found if flushes else one_step(found, microbatches=timed["microbatches"], step=timed["step"] - 2)


def one_step(simulated: Simulated, *, microbatches: int, step: int) -> Simulated:
    """The time from when the first stage ended its backwards of the step before to when it ended those of this one,
    whatever ranks do in it, numbered from the step's first microbatch. As it is, where that was not in it.

    >>> from dovetail.planning.pipeline.timetables.makers import stashing
    >>> from dovetail.planning.pipeline.timetables.timing import Durations, simulate
    >>> run = simulate(stashing([1, 1], microbatches=8), Durations.equal(2))
    >>> one_step(run, microbatches=2, step=2).seconds
    6.0
    """
    first = step * microbatches
    ends = {
        timed.action.microbatch: timed.end
        for rank in simulated.ranks
        for timed in rank
        if timed.action.operation == "backward" and timed.action.stage == 0
    }
    before = [ends[number] for number in range(first - microbatches, first) if number in ends]
    own = [ends[number] for number in range(first, first + microbatches) if number in ends]
    if not before or len(own) < microbatches:
        return simulated
    start, end = max(before), max(own)
    ranks = tuple(tuple(_clipped(rank, start, end)) for rank in simulated.ranks)
    return _since(dataclasses.replace(simulated, ranks=ranks), start, first=first)


def _timed(row: list[Any]) -> Timed:
    operation, stage, microbatch, start, end = row
    return Timed(action=Action(operation=operation, stage=stage, microbatch=microbatch), start=start, end=end)


def _clipped(rank: tuple[Timed, ...], start: float, end: float) -> list[Timed]:
    found = (
        dataclasses.replace(timed, start=max(timed.start, start), end=min(timed.end, end))
        for timed in rank
        if timed.end >= start and timed.start <= end
    )
    return [timed for timed in found if timed.end > timed.start]


def _since(simulated: Simulated, start: float | None, *, first: int = 0) -> Simulated:
    """The same with time beginning at `start`, or with the first action, and microbatches counted from `first`."""
    starts = [timed.start for rank in simulated.ranks for timed in rank]
    zero = min(starts, default=0.0) if start is None else start

    def moved(timed: Timed) -> Timed:
        action = timed.action
        number = action.microbatch if action.operation == "update" else action.microbatch - first
        return Timed(
            action=dataclasses.replace(action, microbatch=number), start=timed.start - zero, end=timed.end - zero
        )

    return dataclasses.replace(simulated, ranks=tuple(tuple(map(moved, rank)) for rank in simulated.ranks))


_LETTERS = {"forward": "F", "backward": "B", "inputs": "I", "weights": "W", "update": "U"}
# Light enough for black figures; told apart by lightness as well as by hue.


def text(simulated: Simulated, *, columns: int = 96, seconds: float = 0.0) -> str:
    """A row for each rank: forwards as F, backwards as B, or I and W where they are split, with the microbatch, updates
    as U; dots are idle. What is too narrow for its figures shows its letter alone. `seconds` are what all columns
    stand for, so that pictures can be compared; left out, as long as it takes.

    >>> from dovetail.planning.pipeline.timetables.makers import one_forward_one_backward
    >>> from dovetail.planning.pipeline.timetables.timing import Durations, simulate
    >>> print(text(simulate(one_forward_one_backward([1, 1], microbatches=2), Durations.equal(2)), columns=27))
    rank 0  F0-F1-......B0----...B1----
    rank 1  ...F0-B0----F1-B1----......
    """
    whole = seconds or simulated.seconds
    scale = columns / whole if whole else 0.0
    return "\n".join(
        f"rank {number:<2} {''.join(_cells(rank, scale, columns))}" for number, rank in enumerate(simulated.ranks)
    )


def _cells(rank: tuple[Timed, ...], scale: float, columns: int) -> Iterator[str]:
    place = 0
    for timed in rank:
        start, end = max(place, round(timed.start * scale)), min(columns, round(timed.end * scale))
        if end <= start:
            continue
        yield "." * (start - place)
        letter = _LETTERS[timed.action.operation]
        label = letter if letter == "U" else f"{letter}{timed.action.microbatch}"
        yield label.ljust(end - start, "-") if len(label) <= end - start else letter.ljust(end - start, "-")
        place = end
    yield "." * (columns - place)
