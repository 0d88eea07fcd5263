"""The shortest makespan, as one linear program."""

from operator import attrgetter

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.share.levels import raise_together, run_all
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation

_STEPS = attrgetter("steps")
# Nothing ends before the bound; the solver's tolerance is about this.
_EQUAL = 1e-6


def allocate(problem: Problem) -> Allocation:
    """min T with rate(m) ≥ steps(m) ÷ T for every task m; with s = 1/T: max s with rate(m) ÷ steps(m) ≥ s.

    `value` is s, so 1 ÷ value is the makespan if all shares are kept to the end. Shares are kept by taking turns, for
    which there is no time where T is less than a round: then, if all tasks can run at once and end within the round,
    each keeps one option to its end, chosen so that the last ends soonest.

    >>> from dovetail.planning.share.policies import example
    >>> round(1 / allocate(example()).value)
    800
    """
    arrays = columns(problem, alike=_STEPS)
    # In hours, so that the level is of the order of one, which is what a solver's tolerances are made for.
    steps = arrays.of_members(_STEPS)
    raised = raise_together(arrays, units=steps / 3600)
    assert raised is not None, "without floors, doing nothing is feasible"
    level, bound = raised.level / 3600, raised.bound / 3600
    if level * problem.round_seconds > 1 and (found := _at_once(arrays, steps, least=1 / bound)) is not None:
        return arrays.allocation(found[0], value=1 / found[1], bound=bound)
    return arrays.allocation(raised.x, value=level, bound=bound)


def _at_once(arrays: Columns, steps: Numbers, *, least: float) -> tuple[Numbers, float] | None:
    """The x with which all tasks run at once and the last ends soonest, and when that is; None if not in a round."""
    options = arrays.problem.options
    lasts = np.array(
        [
            max(steps[group] * seconds for group, seconds in zip(gang, options[number].step_seconds, strict=True))
            for number, gang in zip(arrays.options.tolist(), arrays.groups, strict=True)
        ]
    )
    ends = np.unique(lasts[(lasts >= least * (1 - _EQUAL)) & (lasts <= arrays.problem.round_seconds)]).tolist()
    found, low, high = None, 0, len(ends)
    while low < high:
        # The end of the round first: mostly not even that can be kept.
        middle = (low + high) // 2 if found else high - 1
        x = run_all(arrays, usable=lasts <= ends[middle])
        if x is None:
            low = middle + 1
        else:
            found, high = (x, ends[middle]), middle
    return found
