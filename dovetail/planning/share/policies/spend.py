"""The most work for the money."""

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.share.levels import most_worth
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation, InvalidWorkload


def allocate(problem: Problem) -> Allocation:
    """max Σ over options o of share(o) · Σ over its tasks m (rate(m, o) ÷ best(m)) ÷ spend(o).

    best(m) is the most that m does for one unit of money; so an option is worth the part of that which its money
    buys, and where all can be had each task runs where it is cheapest. Devices that are left stay idle.

    >>> from dovetail.planning.share.policies import example
    >>> [share.option.kind for share in allocate(example()).shares]
    ['fast', 'slow', 'slow']
    """
    arrays = columns(problem)
    worths = worth_of_money(arrays)
    x = most_worth(arrays, worths=worths, floors=np.zeros(arrays.sizes.size))
    assert x is not None, "without floors, doing nothing is feasible"
    return arrays.allocation(x, value=float(worths @ x), fills=False)


def worth_of_money(arrays: Columns) -> Numbers:
    """What each column does for its money, against the best that its tasks could do for theirs.

    >>> from dovetail.planning.share.policies import example
    >>> worth_of_money(columns(example())).max().tolist()
    1.0
    """
    refuse_without_prices(arrays)
    per_money = arrays.entry_rate / arrays.prices[arrays.entry_column]
    best = np.zeros(arrays.sizes.size)
    alone = arrays.single[arrays.entry_column]
    np.maximum.at(best, arrays.entry_group[alone], per_money[alone])
    return arrays.worths(best) / np.where(arrays.prices > 0, arrays.prices, 1.0)


def refuse_without_prices(arrays: Columns) -> None:
    """Refuse kinds that cost nothing: for money there would be no end to what they do.

    >>> from dovetail.planning.share.policies import example
    >>> refuse_without_prices(columns(example()))
    """
    free = sorted({arrays.problem.cluster.kinds[kind].name for kind in arrays.kinds[arrays.prices <= 0].tolist()})
    if free:
        raise InvalidWorkload(
            f"a policy that counts money must know a price above 0 of every kind in use; {', '.join(map(repr, free))} "
            "has none. Give price_per_hour, or choose a policy without money."
        )
