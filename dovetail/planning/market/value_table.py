"""Wait, spot or on demand? What each leads to, for every time left and every slack, by dynamic programming.

Spot comes and goes by two rates, and costs a share of on demand; a move takes time that is paid for, a reclaim loses
work. Time left falls by one step whatever is done; slack, the time left less the work left at on demand's speed, falls
where less is done than on demand does. So a state is (time left, slack, where we are, whether spot is offered), and the
work left follows. This is the trade-off of Wu et al., "Can't Be Late" (NSDI 2024), whose uniform progress spends slack
evenly over the time; the table spends it where it is worth most, which with much slack is another place.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
WAIT, SPOT, ON_DEMAND = 0, 1, 2
STEPS, CELLS = 300, 160
# A state from which the deadline cannot be kept: worth more than anything that can be paid.
_LATE = 100.0
# A move is weighed as if it cost so many times its money. At 1 the mean is least, and more runs end dearer than on
# demand.
_CAUTION = 1.6
# Of equals, what is had now is better than the same later.
_IMPATIENCE = 1e-6
# Spot that stays for so many moves is worth starting on.
_LASTING = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ValueTables:
    """One table for each outlook on spot: the best class of offer for each step of time left, for where we are (WAIT,
    SPOT, ON_DEMAND) with spot offered or not, and for each of the `slacks`. All times are shares of the deadline."""

    slacks: Floats
    best: NDArray[np.int8]

    def look_up(self, table: Ints, time_left: Floats, slack: Floats, where: Ints, offered: NDArray[np.bool_]) -> Ints:
        """What to do, of runs with this much time left and this slack, each by its table."""
        step = np.clip(np.ceil(time_left * STEPS), 1, STEPS).astype(np.int64)
        cell = np.clip(np.searchsorted(self.slacks, slack, side="right") - 1, 0, CELLS)
        return self.best[table, step, where * 2 + offered, cell].astype(np.int64)


def value_tables(
    *, work: float, move: float, lost: float, stays: Floats, away: Floats, price: Floats, speed: Floats
) -> ValueTables:
    """The tables for `work` on demand, moves and what a reclaim loses; a table for each mean time that spot stays and
    stays away, its price against on demand's, and its speed. From the last step of time to the first.

    >>> stays, away, price, speed = (np.array([value]) for value in (0.1, 0.1, 0.3, 1.0))
    >>> tables = value_tables(work=0.5, move=0.002, lost=0.001, stays=stays, away=away, price=price, speed=speed)
    >>> both = np.zeros(2, np.int64)
    >>> found = tables.look_up(both, np.ones(2), np.full(2, 0.5), both + WAIT, np.array([True, False]))
    >>> found.tolist() == [SPOT, WAIT]
    True
    """
    step = 1 / STEPS
    # Fine where slack is short, and decisions are near.
    slacks = max(1 - work, 2 * move + step) * (np.arange(CELLS + 1) / CELLS) ** 2
    best = np.zeros((len(stays), STEPS + 1, 6, CELLS + 1), np.int8)
    # Less than no work is worth less than nothing, in proportion to what the last of it costs: so what lies between a
    # cell with work left and one without is read right.
    slopes = np.stack([price / speed] * 4 + [price**0] * 2)[:, :, None]
    starts = np.stack([price * move * _CAUTION] * 2 + [price * 0] * 4)[:, :, None]
    worth = starts - slopes * slacks
    spends = _spending(slacks, move, lost, stays, away, price[:, None], speed[:, None])
    for number in range(1, STEPS + 1):
        left = number * step - slacks
        found = spends(worth, left)
        best[:, number] = found.argmin(0).transpose(1, 0, 2)
        worth = np.where(left > 0, np.minimum(found.min(0), _LATE), starts + slopes * left)
        best[:, number][worth.transpose(1, 0, 2) >= _LATE / 2] = ON_DEMAND
    return ValueTables(slacks=slacks, best=best)


def _spending(
    slacks: Floats, move: float, lost: float, stays: Floats, away: Floats, price: Floats, speed: Floats
) -> Callable[[Floats, Floats], Floats]:
    """What each class of offer costs from a state to the end, by what the states a step later are worth and by the work
    left: in on demand's money for all of the time."""
    step = 1 / STEPS
    keeps, comes = np.exp(-step / stays)[:, None], 1 - np.exp(-step / away)[:, None]
    lasting = (stays > _LASTING * move)[:, None]
    waited, same, started = (_shifted(slacks, np.full((len(stays), 1), by)) for by in (step, 0.0, move))
    # By whether spot is to be started first: what is done in a step, paid for, and done where it is reclaimed midway.
    # Of a start that takes longer than a step, the rest is as much work.
    done = [speed * (step - start) for start in (0.0, move)]
    paid = [step + (_CAUTION - 1) * start for start in (0.0, move)]
    midway = [speed * (step / 2 - lost), np.maximum(0.0, speed * (max(0.0, step / 2 - move) - lost))]
    kept = [_shifted(slacks, step - work) for work in done]
    reclaimed = [_shifted(slacks, step - work) for work in midway]
    halves = [step / 2, step / 2 + (_CAUTION - 1) * move]

    def spends(worth: Floats, left: Floats) -> Floats:
        found = np.full((3, *worth.shape), _LATE)
        for state in range(6):
            here, offered = divmod(state, 2)
            if here == SPOT and not offered:
                continue
            chance = keeps if offered else comes
            # Whatever is done, spot is offered a step later by this chance: the mean is taken of what is worth.
            idle, sure = (chance * worth[2 * one + 1] + (1 - chance) * worth[2 * one] for one in (WAIT, ON_DEMAND))
            # To wait while spot is there pays only where prices fall, which is not known, or where it never lasts. To
            # leave on demand for nothing made a third of the runs that cost more than on demand, and saved nothing on
            # average.
            barred = (offered & lasting) | (here == ON_DEMAND)
            found[WAIT, state] = waited(idle) + np.where(barred, _LATE, _IMPATIENCE)
            goes_on, start = (same, 0.0) if here == ON_DEMAND else (started, move)
            dear = (_CAUTION - 1) * start
            later = step + goes_on(sure)
            found[ON_DEMAND, state] = np.where(left <= step - start, left + start, later) + dear
            if offered:
                new = int(here != SPOT)
                ends = price * (left / speed + (move * _CAUTION if new else 0.0))
                good = np.where(left <= done[new], ends, price * paid[new] + kept[new](worth[2 * SPOT + 1]))
                bad = price * halves[new] + reclaimed[new](worth[2 * WAIT])
                found[SPOT, state] = keeps * good + (1 - keeps) * bad
        return found

    return spends


def _shifted(slacks: Floats, by: Floats) -> Callable[[Floats], Floats]:
    """Reads rows of values, which stand at `slacks`, where slack is less by so much, a row each; below zero it is
    late."""
    wanted = slacks - by
    cell = np.clip(np.searchsorted(slacks, wanted, side="right") - 1, 0, CELLS - 1)
    part = np.clip((wanted - slacks[cell]) / (slacks[cell + 1] - slacks[cell]), 0.0, 1.0)
    late = wanted < 0

    def read(values: Floats) -> Floats:
        low, high = np.take_along_axis(values, cell, 1), np.take_along_axis(values, cell + 1, 1)
        return np.where(late, _LATE, low + part * (high - low))

    return read
