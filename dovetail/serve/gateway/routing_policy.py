"""Which of the models behind a gateway is asked next: by what was learned, what was spent, and who has room.

Without outcomes to learn from, and without a budget, models are asked in the file's order; with a budget the dearest is
asked as often as it pays for, else the cheapest. Knows upstreams' load and prices, not HTTP.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.serve.gateway.models_file import UpstreamModel
from dovetail.serve.gateway.upstream import Upstream
from dovetail.serve.routing import BudgetKeeper, OutcomeTable, Router
from dovetail.vocabulary import DovetailError

# A call's tokens until some were seen, and how much the newest call counts after.
TYPICAL_IN, TYPICAL_OUT, NEWEST = 500.0, 250.0, 0.05


class RoutingPolicy:
    """Decides for one request after another. `outcomes` is what to learn from; `budget` money for a request."""

    def __init__(
        self,
        models: Sequence[UpstreamModel],
        *,
        outcomes: OutcomeTable | None = None,
        budget: float | None = None,
        money: float = 0.0,
    ) -> None:
        self._expected = {model.name: model.price(TYPICAL_IN, TYPICAL_OUT) for model in models}
        self._order = [model.name for model in models]
        self._budget, self._money = budget, money
        self._count, self._spent = 0, 0.0
        self.router: Router | None = None
        self._keeper: BudgetKeeper | None = None
        self._starts: dict[str, str | None] = {}
        if outcomes is not None:
            self.router = Router(outcomes.of_models(self._order))
            self._keeper = BudgetKeeper(self.router, budget=budget) if budget is not None else None
        elif budget is not None and budget < min(self._expected.values()):
            raise DovetailError(
                f"a budget must pay for the cheapest model, which takes about {min(self._expected.values()):.4g} a "
                f"request of {TYPICAL_IN:.0f} tokens and {TYPICAL_OUT:.0f} in answer; got {budget:.4g}."
            )

    @property
    def money(self) -> float:
        """The quality that a unit of money must buy now."""
        return self._keeper.money() if self._keeper is not None else self._money

    def record_spend(self, price: float, *, by_model: Mapping[str, float]) -> None:
        """A request was answered, and took so much in all and with each model."""
        self._count += 1
        self._spent += price
        if self._keeper is not None:
            self._keeper.record_spend(price)
        for name, value in by_model.items():
            self._expected[name] += NEWEST * (value - self._expected[name])

    def order(self, query: str, domain: str | None, upstreams: Mapping[str, Upstream]) -> list[str]:
        """The models to ask, the next one only where the one before fails. Those that are busy are put back by as much
        quality as they are pressed for, so that traffic moves before anything waits."""
        if self.router is None:
            return self._order_by_budget()
        router, pressure = self.router, np.array([upstreams[name].pressure for name in self.router.models])
        domains = None if domain is None else [domain]
        estimate = router.estimate([query], domains)
        worth = estimate.quality[0] - self.money * router.price - pressure
        chosen = int(router.choose_estimated(estimate, money=self.money, handicap=pressure)[0])
        ranked = [chosen, *(each for each in np.argsort(-worth).tolist() if each != chosen)]
        names = [router.models[each] for each in ranked]
        return [*names, *(name for name in self._order if name not in names)]

    def _order_by_budget(self) -> list[str]:
        by_price = sorted(self._order, key=lambda name: self._expected[name])
        if self._budget is None:
            return list(self._order)
        left = self._budget * (self._count + 1) - self._spent
        affordable = [name for name in by_price if self._expected[name] <= left]
        return [*reversed(affordable), *(name for name in by_price if name not in affordable)]

    def start(self, order: Sequence[str]) -> str:
        """The model whose answer is to be had first, where answers are looked at; else the first of the order."""
        if self.router is None or not self.router.judged_models:
            return order[0]
        money = self.money
        key = f"{money:.1e}"  # which model that is changes at few prices of money, and finding out reads the table
        if key not in self._starts:
            number = self.router.start(money)
            self._starts[key] = None if number is None else self.router.models[number]
        return self._starts[key] or order[0]

    def onward(
        self, query: str, answers: Mapping[str, str], domain: str | None, upstreams: Mapping[str, Upstream]
    ) -> tuple[str | None, str]:
        """Once there are answers: the model to ask next, or None; and whose answer to give if it fails or is None. The
        busier a model, the worse an answer must be to go on to it."""
        last = list(answers)[-1]
        if (
            self.router is None
            or not self.router.judged_models
            or any(name not in self.router.models for name in answers)
        ):
            return None, last
        pressure = np.array([upstreams[name].pressure for name in self.router.models])
        step = self.router.after(query, answers, domain, money=self.money, handicap=pressure)
        if step.ask is None or not is_ready(upstreams[step.ask]):
            return None, step.give or last
        return step.ask, last


def is_ready(upstream: Upstream) -> bool:
    """Whether this model may be asked now: it has room, and its circuit is closed."""
    return not upstream.is_full and upstream.breaker.allows()


def retry_after(upstreams: Sequence[Upstream], seconds: float) -> int:
    """In how many whole seconds one of these that cannot be asked now may be; a call takes so many on average."""
    waits = [max(each.breaker.seconds_left(), seconds if each.is_full else 0.0) for each in upstreams]
    return max(1, math.ceil(min(waits, default=1.0)))
