"""Keeps a stream of queries to a budget: the price of money follows what has been spent.

Estimates of spending are off, queries differ from those in the table and prices with their answers' lengths; so after
each answer the budget of the next queries is what is left for them, and money costs what it must for that.
"""

import numpy as np

from dovetail.serve.routing.decisions import check_budget
from dovetail.serve.routing.router import Router

# What was overspent is made up for over so many queries: in fewer, the last of them would pay for chance.
HORIZON = 100
_GRID = 64


class BudgetKeeper:
    """The price of money for the next query, such that queries take `budget` each on average or less.

    >>> from dovetail.serve.routing import OutcomeTable, route
    >>> rows = [{"query": f"{kind} {n}", "model": model, "quality": float(kind == "easy" or model == "large"),
    ...          "price": 1.0 if model == "large" else 0.1}
    ...         for n in range(40) for kind in ("easy", "hard") for model in ("small", "large")]
    >>> keeper = BudgetKeeper(route(OutcomeTable.of(rows)), budget=0.5)
    >>> before = keeper.money()
    >>> for _ in range(20):
    ...     keeper.record_spend(1.0)
    >>> keeper.money() > before
    True
    """

    def __init__(self, router: Router, *, budget: float) -> None:
        check_budget(router.price[None], budget)
        self._budget, self._count, self._spent = budget, 0, 0.0
        top = 4.0 / max(1e-12, float(router.price.max() - router.price.min()))
        moneys = np.concatenate([[0.0], np.geomspace(top * 1e-4, top, _GRID)])
        # As a function it must not rise: at a dearer money nobody spends more, but for chance in the estimates.
        self._spends = np.minimum.accumulate([router.spends(money) for money in moneys])[::-1]
        self._moneys = moneys[::-1]

    def record_spend(self, price: float) -> None:
        """Note what a query has taken."""
        self._count += 1
        self._spent += price

    def money(self) -> float:
        """Interpolated where spending falls in steps: the query after the next corrects."""
        allowed = (self._budget * (self._count + HORIZON) - self._spent) / HORIZON
        return float(np.interp(allowed, self._spends, self._moneys))
