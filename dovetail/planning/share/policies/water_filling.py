"""Max-min fairness to the end: when the worst off can have no more, raise the next, and so on."""

from operator import attrgetter

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.share.levels import Raised, raise_together
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation

# A level already reached may sink by this share in a later program: what the solver calls equal.
_SLACK = 1e-7
_DUAL = 1e-9
_WEIGHT = attrgetter("weight")


def allocate(problem: Problem) -> Allocation:
    """The lexicographic maximum of the sorted vector of rate(m) ÷ (weight(m) · reference(m)).

    Raise all tasks together; those that hold the level down (a positive dual of their row says so) are frozen there,
    and the others are raised further, until all are frozen. `value` is the first level, that of max-min fairness.

    >>> from dovetail.planning.share.policies import example
    >>> allocation = allocate(example())
    >>> round(allocation.value, 4)
    1.0
    """
    arrays = columns(problem, alike=_WEIGHT)
    units = arrays.references() * arrays.of_members(_WEIGHT)
    x, levels = fill(arrays, units)
    return arrays.allocation(x, value=float(levels.min(initial=np.inf)) if levels.size else 0.0)


def fill(arrays: Columns, units: Numbers) -> tuple[Numbers, Numbers]:
    """The shares, and the level at which each group was frozen.

    >>> from dovetail.planning.share.policies import example
    >>> arrays = columns(example())
    >>> fill(arrays, arrays.references())[1].round(3).tolist()
    [1.0, 1.0]
    """
    levels = np.zeros(units.size)
    lifted = np.ones(units.size, bool)
    x = np.zeros(arrays.options.size)
    while lifted.any():
        raised = raise_together(arrays, units=units, lifted=lifted, floors=levels * (1 - _SLACK), spread=False)
        assert raised is not None, "what was reached before can be reached again"
        x = raised.x
        holding = frozen(raised, lifted)
        levels[holding] = raised.level
        lifted &= ~holding
    return x, levels


def frozen(raised: Raised, lifted: np.ndarray) -> np.ndarray:
    """Which of the lifted groups can have no more: those with a dual, and all where no dual tells.

    >>> both = np.ones(2, bool)
    >>> raised = Raised(x=np.zeros(0), level=1.0, bound=1.0, holding=np.array([1.0, 0.0]))
    >>> frozen(raised, both).tolist()
    [True, False]
    """
    holding = lifted & (raised.holding > _DUAL)
    return holding if holding.any() else lifted
