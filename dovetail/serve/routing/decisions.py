"""Which model each query goes to, given estimated qualities and prices: one decision a function, all pure.

`money` is λ, the quality that a unit of money must buy: a model is worth quality − λ·price. A budget is a linear
program whose dual is that λ, so that what is decided for a batch can be decided one query at a time, too.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dovetail.serve.routing.calibration import QualityEstimate
from dovetail.serve.routing.outcome_table import Numbers
from dovetail.vocabulary import DovetailError

Choices = NDArray[np.int64]
# Standard errors by which a model must be better than the best single one to be preferred.
SURE = 1.0


def choose_by_worth(
    estimate: QualityEstimate, price: Numbers, *, money: float, single: int, sure: float = SURE
) -> Choices:
    """The model of the largest quality − λ·price; where its lead over `single`, the best single model at that λ, is
    within `sure` standard errors, that one.

    >>> estimate = QualityEstimate(quality=np.array([[0.6, 0.9], [0.88, 0.9]]), error=np.zeros((2, 2)))
    >>> choose_by_worth(estimate, np.array([[0.0, 1.0], [0.0, 1.0]]), money=0.1, single=0).tolist()
    [1, 0]
    """
    worth = estimate.quality - money * price
    chosen = worth.argmax(axis=1)
    every = np.arange(len(worth))
    lead = worth[every, chosen] - worth[:, single]
    unsure = np.hypot(estimate.error[every, chosen], estimate.error[:, single])
    return np.where(lead > sure * unsure, chosen, single)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BudgetSolution:
    """For each query and model the share of its calls, and `money`, the quality that one more unit of money buys."""

    shares: Numbers
    money: float


def within_budget(quality: Numbers, price: Numbers, *, budget: float) -> BudgetSolution:
    """Maximise Σ quality·x with Σ_model x = 1 for each query and Σ price·x at most `budget` a query on average.

    At most one query is shared by two models.

    >>> found = within_budget(np.array([[0.0, 1.0], [0.5, 0.6]]), np.array([[0.0, 1.0], [0.0, 1.0]]), budget=0.75)
    >>> found.shares.round(6).tolist(), round(found.money, 6)
    ([[0.0, 1.0], [0.5, 0.5]], 0.1)
    """
    from dovetail.planning.solver.linear import LinearProgram, maximise

    count, models = quality.shape
    check_budget(price, budget)
    columns = np.arange(count * models)
    program = LinearProgram(
        objective=quality.ravel(),
        rows=np.concatenate([columns // models, np.full(columns.size, count)]),
        columns=np.concatenate([columns, columns]),
        values=np.concatenate([np.ones(columns.size), price.ravel()]),
        lower=np.concatenate([np.ones(count), [-np.inf]]),
        upper=np.concatenate([np.ones(count), [budget * count]]),
    )
    found = maximise(program)
    assert found is not None, "the cheapest models fit, so something does"
    return BudgetSolution(shares=found.x.reshape(count, models), money=max(0.0, abs(float(found.duals[-1]))))


def check_budget(price: Numbers, budget: float) -> None:
    """Raise where even the cheapest model of every query takes more than the budget."""
    least = float(price.min(axis=1).mean())
    if budget < least:
        raise DovetailError(
            f"a budget must pay for the cheapest model, which takes {least:.4g} a query; got {budget:.4g}. Give more, "
            "or name a cheaper model."
        )
