"""The most work for the money among shares that keep every deadline."""

from operator import attrgetter

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.share.levels import most_worth, raise_together
from dovetail.planning.share.policies.spend import worth_of_money
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation, InvalidWorkload, Member, NoFeasiblePlan

_READ = attrgetter("steps", "deadline_seconds")
_SHOWN = 5


def allocate(problem: Problem) -> Allocation:
    """As `spend`, with rate(m) ≥ steps(m) ÷ deadline(m) for every task m that has a deadline.

    >>> from dovetail.planning.share.policies import example
    >>> allocate(example()).fills
    False
    """
    late = [m for family in problem.families for m in family.members if m.deadline_seconds <= 0]
    if late:
        raise InvalidWorkload(
            f"deadlines must lie ahead; {_named(late)} already past. Give a later one, or cancel the task."
        )
    arrays = columns(problem, alike=_READ)
    floors = arrays.of_members(attrgetter("steps")) / arrays.of_members(attrgetter("deadline_seconds"))
    worths = worth_of_money(arrays)
    x = most_worth(arrays, worths=worths, floors=floors)
    if x is None:
        raise NoFeasiblePlan(_why_not(arrays, floors))
    return arrays.allocation(x, value=float(worths @ x), fills=False)


def _why_not(arrays: Columns, floors: Numbers) -> str:
    best = np.zeros(arrays.sizes.size)
    np.maximum.at(best, arrays.entry_group, arrays.entry_rate)
    hopeless = [m for group in np.flatnonzero(floors > best).tolist() for m in arrays.members[group]]
    if hopeless:
        return (
            f"every deadline must be within reach of the fastest option; {_named(hopeless)} too close even for a "
            "cluster of its own. Give a later one."
        )
    raised = raise_together(
        arrays, units=np.where(floors > 0, floors, 1.0), lifted=floors > 0, floors=np.zeros(floors.size), spread=False
    )
    reached = raised.level if raised is not None else 0.0
    limit = arrays.capacity[-1]
    money = f" for at most {limit:g} an hour" if np.isfinite(limit) else ""
    return (
        f"all deadlines must be kept together{money}; on these devices all tasks with one reach {reached:.0%} of the "
        "rate they need at once. Give later ones, more devices or more money."
    )


def _named(members: list[Member]) -> str:
    shown = ", ".join(f"that of {member.task!r} ({member.deadline_seconds:g} s)" for member in members[:_SHOWN])
    more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
    return f"{shown}{more} {'is' if len(members) == 1 else 'are'}"
