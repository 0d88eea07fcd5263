"""How a router learned from a table would do on queries it has not seen: five folds, beside what is simpler.

Every query is judged by a router that was made without it. Only queries whose outcome with every model is known count.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dovetail.serve.routing.outcome_table import LEAST, Numbers, OutcomeTable
from dovetail.serve.routing.router import Router
from dovetail.serve.routing.routing_metrics import (
    RoutedOutcomes,
    RoutingScore,
    route_by_worth,
    routed_after_answer,
    score_routing,
)
from dovetail.vocabulary import DovetailError

FOLDS = 5
MakeRouter = Callable[[OutcomeTable], Router]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingReport:
    """Ways of routing by name, with their figures, and what single models give and take."""

    queries: int
    scores: dict[str, RoutingScore]
    singles: dict[str, tuple[float, float]]

    def rows(self) -> list[dict[str, str]]:
        """The figures of each way of routing, as a row of text."""
        return [
            {
                "way": name,
                "APGR": _figure(score.apgr, score.apgr_interval),
                "CPT 50%": _figure(score.cpt50),
                "CPT 80%": _figure(score.cpt80),
                "AIQ": _figure(score.aiq, score.aiq_interval),
            }
            for name, score in self.scores.items()
        ]


def report_routing(table: OutcomeTable, *, make: MakeRouter = Router, seed: int = 0) -> RoutingReport:
    """Judge routing on this table, in five folds drawn by `seed`."""
    table = complete(table)
    folds = np.random.default_rng(seed).permutation(np.arange(len(table)) % FOLDS)
    text, after = held_out_estimates(table, folds, make)
    quality, price = table.quality, table.price
    cheap, best = int(price.mean(axis=0).argmin()), int(quality.mean(axis=0).argmax())
    ways: dict[str, RoutedOutcomes] = {"router": route_by_worth(text, quality, price)}
    for asked, score in after.items():
        ways[f"router, after {table.models[asked]}"] = routed_after_answer(score, quality, price, asked=asked)
    ways["random"] = RoutedOutcomes(quality=quality[:, [cheap, best]], price=price[:, [cheap, best]])
    ways["length"] = route_by_worth(_score_by_length(table, cheap, best), quality, price)
    if table.domains is not None:
        means = held_out_estimates(table, folds, lambda part: Router(part, estimator="domains"), answers=False)[0]
        ways["domain means"] = route_by_worth(means, quality, price)
    ways["oracle"] = route_by_worth(quality, quality, price)
    return RoutingReport(
        queries=len(table),
        scores={name: score_routing(way, quality, price) for name, way in ways.items()},
        singles={
            name: (float(quality[:, number].mean()), float(price[:, number].mean()))
            for number, name in enumerate(table.models)
        },
    )


def complete(table: OutcomeTable) -> OutcomeTable:
    """The queries whose quality and price are known with every model."""
    known = np.flatnonzero(~(np.isnan(table.quality) | np.isnan(table.price)).any(axis=1))
    least = math.ceil(LEAST * FOLDS / (FOLDS - 1))  # so that each router has enough to learn from
    if len(known) < least or len(table.models) < 2:
        raise DovetailError(
            f"to judge routing takes at least 2 models and {least} queries whose quality and price are known with all "
            f"of them; found {len(table.models)} and {len(known)}."
        )
    return table.rows(known)


def held_out_estimates(
    table: OutcomeTable, folds: NDArray[np.int64], make: MakeRouter, *, answers: bool = True
) -> tuple[Numbers, dict[int, Numbers]]:
    """Estimated qualities of each query by a router made without its fold; by the query alone, and after the answer of
    each model whose answers are in the table."""
    text = np.empty_like(table.quality)
    after: dict[int, Numbers] = {}
    for fold in np.unique(folds):
        held = np.flatnonzero(folds == fold)
        router = make(table.rows(np.flatnonzero(folds != fold)))
        part = table.rows(held)
        text[held] = router.estimate(part.queries, part.domains).quality
        for asked in router.judged_models if answers else ():
            after.setdefault(asked, text.copy())[held] = router.estimate_after(
                part.queries, [(row[asked] or "") for row in part.answers or ()], asked, part.domains
            ).quality
    return text, after


def _score_by_length(table: OutcomeTable, cheap: int, best: int) -> Numbers:
    """The longer a query, the more the best model is preferred to the cheapest, and never another."""
    score = np.full_like(table.quality, -np.inf)
    score[:, cheap], score[:, best] = 0.0, [len(query) for query in table.queries]
    return score


def _figure(value: float, interval: tuple[float, float] | None = None) -> str:
    if np.isnan(value):
        return "–"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
