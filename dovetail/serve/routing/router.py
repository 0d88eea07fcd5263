"""`dt.route`: learns from outcomes which model should answer which query, and decides for new ones.

Estimates come calibrated from `fitted_quality`, choices from `decisions`; here they meet the prices of the table and
the answers that are already there. Does not know how models are asked.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dovetail.serve.routing import decisions
from dovetail.serve.routing.answer_signals import AnswerRidge, Verifier
from dovetail.serve.routing.calibration import QualityEstimate
from dovetail.serve.routing.estimators import ESTIMATORS, Embedder
from dovetail.serve.routing.fitted_quality import FittedQuality, fit_estimator
from dovetail.serve.routing.outcome_table import Numbers, OutcomeTable
from dovetail.serve.routing.text_features import TextFeatures
from dovetail.vocabulary import DovetailError

if TYPE_CHECKING:
    from dovetail.serve.routing.routing_report import RoutingReport

# A query with less in common with the table than all but this share of the table's own queries have is a stranger.
_STRANGE = 0.02
# So many of the table's queries are looked at to see whether one is a stranger.
_KNOWN_QUERIES = 5_000
# An answer's own signals are learned from at least so many of a model's answers.
_LEAST_ANSWERS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteStep:
    """What to do next for a query: ask `ask`, or, where that is None, give the answer of `give`."""

    ask: str | None
    give: str | None = None


class Router:
    """Which model answers which query. Made by `dt.route`.

    `money` is the quality that a unit of money must buy: 0 takes the best model whatever its price. Queries of which
    too little is known go to the best single model.
    """

    def __init__(
        self,
        table: OutcomeTable,
        *,
        estimator: str = "text",
        embed: Embedder | None = None,
        verifiers: Sequence[Verifier] = (),
    ) -> None:
        if estimator not in ESTIMATORS:
            raise DovetailError(f"an estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}.")
        self._make = functools.partial(Router, estimator=estimator, embed=embed, verifiers=verifiers)
        self.table = table = table.keep_judged()
        self.models = table.models
        self.price: Numbers = _mean_prices(table)
        self.best = int(np.nanmean(table.quality, axis=0).argmax())
        self._estimator = ESTIMATORS[estimator](embed)
        self._fitted = fit_estimator(self._estimator, table.queries, table.domains, table.quality, best=self.best)
        self._domains = set(table.domains or ())
        self._familiarity = None if table.domains else _Familiarity(table.queries)
        self._judges = self._fit_judges(table, verifiers)

    @property
    def best_single(self) -> str:
        """The model of the best mean quality."""
        return self.models[self.best]

    def estimate(self, queries: Sequence[str], domains: Sequence[str] | None = None) -> QualityEstimate:
        """The quality of each model's answer to each query, calibrated, and how unsure its lead or lag is."""
        _check_queries(queries, domains)
        rows = self._estimator.represent(queries, domains if self._domains else None)
        return self._fitted.estimate(rows, self._is_familiar(queries, domains))

    def choose(self, queries: Sequence[str], domains: Sequence[str] | None = None, *, money: float = 0.0) -> list[str]:
        """The model for each query: the one of the largest quality − money·price, and the best single model at that
        price of money where none is surely better."""
        return self._names(self.choose_estimated(self.estimate(queries, domains), money))

    def choose_above(
        self, queries: Sequence[str], domains: Sequence[str] | None = None, *, threshold: float
    ) -> list[str]:
        """The best single model where it is better than the cheapest by at least the threshold, else the cheapest."""
        quality = self.estimate(queries, domains).quality
        cheapest = int(self.price.argmin())
        is_above = quality[:, self.best] - quality[:, cheapest] >= threshold
        return self._names(np.where(is_above, self.best, cheapest))

    def spread(self, queries: Sequence[str], domains: Sequence[str] | None = None, *, budget: float) -> list[str]:
        """The models for all these queries together that promise the most quality for at most `budget` a query on
        average, by a linear program."""
        found = decisions.within_budget(
            self.estimate(queries, domains).quality, self._prices(len(queries)), budget=budget
        )
        # Of the one query that two models share, the cheaper has it all.
        shared = np.where(found.shares > 1e-9, self.price, np.inf)
        return self._names(np.where(found.shares.max(axis=1) > 1 - 1e-9, found.shares.argmax(1), shared.argmin(axis=1)))

    def report(self) -> "RoutingReport":
        """How routers learned from parts of the table do on the rest, beside simpler ways."""
        from dovetail.serve.routing.routing_report import report_routing

        return report_routing(self.table, make=self._make)

    def spends(self, money: float) -> float:
        """What queries like the table's take on average at this price of money."""
        if (start := self.start(money)) is not None:
            return self._judges[start].spend(self.price, money)
        return float(self.price[self.choose_estimated(self._fitted.held_out, money)].mean())

    def first(self, query: str, domain: str | None = None, *, money: float = 0.0) -> RouteStep:
        """Which model to ask first: where the table has answers, the one from whose answer it pays to go on from, if
        over the table's queries that is worth more than deciding by the query alone."""
        domains = None if domain is None else [domain]
        start = self.start(money)
        return RouteStep(ask=self.choose([query], domains, money=money)[0] if start is None else self.models[start])

    def start(self, money: float) -> int | None:
        """The model whose answer is worth having first at this price of money, or None to decide by the query."""
        held, every = self._fitted.held_out, np.arange(len(self.table))
        chosen = self.choose_estimated(held, money)
        worths: dict[int | None, float] = {
            None: float((held.quality[every, chosen] - money * self.price[chosen]).mean())
        }
        for asked, judge in self._judges.items():
            worths[asked] = float(judge.worth(self.price, money).mean())
        return max(worths, key=lambda each: worths[each])

    def after(
        self,
        query: str,
        answers: Mapping[str, str],
        domain: str | None = None,
        *,
        money: float = 0.0,
        handicap: Numbers | float = 0.0,
    ) -> RouteStep:
        """What to do once there are answers, in the order in which they came: ask another model, if by what the last
        one says that is worth its price, or give the best answer there is. A model that is asked must be better by its
        `handicap`."""
        for name in answers:
            self._number(name)
        judged = [self._number(name) for name in answers if self._number(name) in self._judges]
        domains = None if domain is None else [domain]
        if not judged:
            quality = self.estimate([query], domains).quality[0]
        else:
            quality = self.estimate_after([query], [answers[self.models[judged[-1]]]], judged[-1], domains).quality[0]
            for each in judged[:-1]:
                own = self.estimate_after([query], [answers[self.models[each]]], each, domains)
                quality[each] = own.quality[0, each]
        asked = [self._number(name) for name in answers]
        worth = np.where(np.isin(np.arange(len(self.models)), asked), quality, quality - money * self.price - handicap)
        best = int(worth.argmax())
        if best in asked:
            return RouteStep(ask=None, give=self.models[best])
        return RouteStep(ask=self.models[best])

    @property
    def judged_models(self) -> tuple[int, ...]:
        """The numbers of the models whose answers say something, as learned from those in the table."""
        return tuple(self._judges)

    def estimate_after(
        self, queries: Sequence[str], answers: Sequence[str], asked: int, domains: Sequence[str] | None = None
    ) -> QualityEstimate:
        """Qualities once a model, by its number, has answered each query."""
        return self._judges[asked].estimate(queries, domains, answers, self._is_familiar(queries, domains))

    def _fit_judges(self, table: OutcomeTable, verifiers: Sequence[Verifier]) -> "dict[int, _AnswerJudge]":
        if table.answers is None:
            return {}
        judges = {}
        for asked in range(len(table.models)):
            there = np.array([row[asked] is not None for row in table.answers])
            # The dearest model's answer has nobody to go on to.
            if there.sum() >= _LEAST_ANSWERS and self.price[asked] < self.price.max():
                judges[asked] = _AnswerJudge(table.rows(np.flatnonzero(there)), asked, self.best, verifiers)
        return judges

    def _is_familiar(self, queries: Sequence[str], domains: Sequence[str] | None) -> NDArray[np.bool_]:
        if self._familiarity is not None:
            return self._familiarity(queries)
        return np.array([domain in self._domains for domain in domains or [""] * len(queries)])

    def choose_estimated(
        self, estimate: QualityEstimate, money: float, handicap: Numbers | float = 0.0
    ) -> decisions.Choices:
        """The numbers of the models that `choose` would name, for queries whose qualities were estimated before; each
        model's quality is taken to be less by its handicap."""
        estimate = dataclasses.replace(estimate, quality=estimate.quality - handicap)
        worth = np.nanmean(self.table.quality, axis=0) - handicap - money * self.price
        prices = self._prices(len(estimate.quality))
        return decisions.choose_by_worth(estimate, prices, money=money, single=int(worth.argmax()))

    def _prices(self, count: int) -> Numbers:
        return np.broadcast_to(self.price, (count, len(self.price)))

    def _names(self, chosen: Any) -> list[str]:
        return [self.models[each] for each in chosen]

    def _number(self, name: str) -> int:
        if name not in self.models:
            raise DovetailError(f"a model must be one of the table's, {', '.join(self.models)}; got {name!r}.")
        return self.models.index(name)


def _check_queries(queries: Sequence[str], domains: Sequence[str] | None) -> None:
    if isinstance(queries, str) or not len(queries):
        raise DovetailError(f"queries must be a list of texts, one or more; got {queries!r}. Put a single one into [].")
    if domains is not None and (isinstance(domains, str) or len(domains) != len(queries)):
        got = repr(domains) if isinstance(domains, str) else f"{len(domains)} domains"
        raise DovetailError(f"there must be a domain for each query; got {len(queries)} queries and {got}.")


class _AnswerJudge:
    """What the answers of one model say about all."""

    def __init__(self, table: OutcomeTable, asked: int, best: int, verifiers: Sequence[Verifier]) -> None:
        assert table.answers is not None
        self._asked = asked
        answers = [row[asked] or "" for row in table.answers]
        self._ridge = AnswerRidge(verifiers)
        self._ridge.prepare(table.queries, table.domains, answers)
        rows = self._ridge.represent(table.queries, table.domains, answers)
        strange = None if table.domains is None else self._ridge.represent(table.queries, None, answers)
        self._fitted = FittedQuality.fit(
            self._ridge.fit, rows, table.quality, table.domains, best=best, rows_of_strangers=strange
        )
        self._has_domains = table.domains is not None

    def estimate(
        self, queries: Sequence[str], domains: Sequence[str] | None, answers: Sequence[str],
        is_familiar: NDArray[np.bool_],
    ) -> QualityEstimate:  # fmt: skip
        rows = self._ridge.represent(queries, domains if self._has_domains else None, answers)
        return self._fitted.estimate(rows, is_familiar)

    def worth(self, price: Numbers, money: float) -> Numbers:
        """Of having this answer first, for each query of the table: the better of keeping it and of asking on."""
        return np.asarray(self._worths(price, money).max(axis=1) - money * price[self._asked])

    def spend(self, price: Numbers, money: float) -> float:
        """What a query of the table takes on average, asked on where that is worth more."""
        onward = self._worths(price, money).argmax(axis=1)
        return float(price[self._asked] + np.where(onward == self._asked, 0.0, price[onward]).mean())

    def _worths(self, price: Numbers, money: float) -> Numbers:
        """Of each model's answer from here on: this one's is paid for."""
        paid = np.where(np.arange(len(price)) == self._asked, 0.0, price)
        return np.asarray(self._fitted.held_out.quality - money * paid)


class _Familiarity:
    """Whether a query has as much in common with the table's as those have with one another."""

    def __init__(self, queries: Sequence[str]) -> None:
        step = max(1, len(queries) // _KNOWN_QUERIES)
        self._features = TextFeatures().fit(queries)
        self._known = self._features.words(queries[::step])
        sample = queries[:: max(1, len(queries) // 500)]
        # Each is nearest to itself, so it is the second that counts.
        nearness = np.sort((self._features.words(sample) @ self._known.T).toarray(), axis=1)
        own = nearness[:, -2] if nearness.shape[1] > 1 else nearness[:, -1]
        self._least = float(np.quantile(own, _STRANGE))

    def __call__(self, queries: Sequence[str]) -> NDArray[np.bool_]:
        nearest = (self._features.words(queries) @ self._known.T).max(axis=1).toarray().ravel()
        return np.asarray(nearest >= max(self._least, 1e-9))


def _mean_prices(table: OutcomeTable) -> Numbers:
    if bad := [
        name for name, no in zip(table.models, np.atleast_1d(np.isnan(table.price).all(axis=0)), strict=True) if no
    ]:
        raise DovetailError(f"every model must have a price in the table; {', '.join(bad)} have none.")
    return np.asarray(np.nanmean(table.price, axis=0))


def route(
    outcomes: OutcomeTable | str | Path,
    *,
    estimator: str = "text",
    embed: Embedder | None = None,
    verifiers: Sequence[Verifier] = (),
) -> Router:
    """Learn from outcomes which model should answer which query.

    `outcomes` is a table of queries by models with the quality and the price of each answer: a CSV or Parquet file with
    the columns `query`, `model`, `quality` (0 to 1), `price`, and where known `seconds`, `domain` and `answer`. The
    estimator is `text` (words and shape of the query), `neighbours` (over `embed`, a function from texts to rows of
    numbers) or `domains` (means of the domain). No keys, no downloads. With answers in the table, what an answer says
    about itself decides whether another model is asked; `verifiers` are functions of a query and an answer that help.

    >>> rows = [{"query": f"{kind} {n}", "model": model, "quality": float(kind == "easy" or model == "large"),
    ...          "price": 1.0 if model == "large" else 0.1}
    ...         for n in range(40) for kind in ("easy", "hard") for model in ("small", "large")]
    >>> router = route(OutcomeTable.of(rows))
    >>> router.best_single, router.choose(["easy 7", "hard 7"], money=0.2)
    ('large', ['small', 'large'])
    """
    table = outcomes if isinstance(outcomes, OutcomeTable) else OutcomeTable.read(outcomes)
    return Router(table, estimator=estimator, embed=embed, verifiers=verifiers)
