"""What to rent for a workload and when: measured here, predicted on the kinds of a market, planned by its prices."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.control import Reconciliation
from dovetail.describe.markets import HOLDS_SECONDS, MarketSource, check_fresh, check_kinds, parse_time
from dovetail.engines import Engine
from dovetail.planning import plan as plan_schedule
from dovetail.planning.market.renting import plan_rental
from dovetail.planning.options.kinds import SHEETS, parse_cluster
from dovetail.verbs.amendments import limit_cluster
from dovetail.verbs.engine_places import Given, MakeEngine
from dovetail.verbs.make_plan import MeasuredWorkload, measure_workload, solve
from dovetail.vocabulary import Cluster, DovetailError, Kind, NoFeasiblePlan, Objective
from dovetail.vocabulary.markets import Offer, PriceHistory, RentalPlan, RentalTerms


def rent(
    workload: Given,
    *,
    market: str,
    objective: str,
    cluster: str | None = None,
    move_seconds: float = 600.0,
    lost_seconds: float = 120.0,
    at: str | None = None,
    solve_seconds: float = 5.0,
    techniques: str | None = None,
    device_memory: str | None = None,
    allow: str | None = None,
    store: str | Path = ".dovetail",
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
    before: Callable[[Reconciliation], None] = lambda found: None,
) -> RentalPlan:
    """Plan a rental for the workload: `cluster` says how many devices of which kinds to rent at most (one of each kind
    of the market unless told otherwise), `objective` by when all must have ended."""
    terms = _terms(objective, move_seconds, lost_seconds)
    history, now = _prices(market, at)
    counts = _counts(history, cluster)
    found = measure_workload(
        workload,
        cluster="+".join(f"{count}x{kind}" for kind, count in counts.items()),
        prices={},
        store=store,
        engine=engine,
        address=address,
        before=before,
        objective="makespan",
        techniques=techniques,
        device_memory=device_memory,
        allow=allow,
    )
    offers = _offers(found, history, counts, work=solve_seconds / 4)
    return plan_rental(history, offers, terms, at_seconds=now)


def _terms(objective: str, move_seconds: float, lost_seconds: float) -> RentalTerms:
    wanted = Objective.parse(objective)
    if wanted.name != "spend":
        raise DovetailError(
            f"--market must come with an objective of money, --objective spend:deadline=8h, got {objective!r}."
        )
    return RentalTerms(deadline_seconds=wanted.deadline_seconds, move_seconds=move_seconds, lost_seconds=lost_seconds)


def _prices(market: str, at: str | None) -> tuple[PriceHistory, float]:
    """The prices, and the moment to plan for: now, or the one that was given."""
    history = MarketSource(market).ask()
    if at is None:
        now = time.time()
        check_fresh(history, now=now)
        return history, max(now, history.times[-1])
    then = parse_time(at, where="--at")
    if not history.times[0] <= then <= history.times[-1] + HOLDS_SECONDS:
        raise DovetailError(f"--at must be a time of the price history; {at} is not.")
    return history, then


def _counts(history: PriceHistory, cluster: str | None) -> dict[str, int]:
    """How many devices of each kind may be rented."""
    kinds = sorted({market.kind for market in history.markets})
    if cluster is None:
        check_kinds(history, {*SHEETS, "cpu"}, what="Write kinds as Dovetail does, or leave them out of the table.")
        return dict.fromkeys(kinds, 1)
    asked = parse_cluster(cluster, at_hand=[Kind(name="cpu", processor="cpu")])
    found = {kind.name: count for kind, count in asked.counts()}
    strange = sorted(set(found) - set(kinds))
    if strange:
        raise DovetailError(f"kinds of --cluster must have prices in the market, {kinds}; {strange[0]!r} has none.")
    return found


def _offers(
    found: MeasuredWorkload, history: PriceHistory, counts: Mapping[str, int], *, work: float
) -> tuple[Offer, ...]:
    """What can be rented: of each kind 1, 2, 4 devices and so on, as long as more end sooner, in each of its
    markets."""
    offers: list[Offer] = []
    refusals: list[str] = []
    for kind, most in counts.items():
        seconds: dict[int, float] = {}
        for count in _doubled(most):
            try:
                seconds[count] = _makespan(found, f"{count}x{kind}", work=work)
            except NoFeasiblePlan as error:
                refusals.append(str(error))
        kept = [
            count for count in seconds if all(seconds[count] < seconds[less] * 0.99 for less in seconds if less < count)
        ]
        offers += [
            Offer(market=market, count=count, work_seconds=seconds[count])
            for market in history.markets
            if market.kind == kind
            for count in kept
        ]
    if not offers:
        raise NoFeasiblePlan("some kind of the market must be able to run every task:\n" + "\n".join(refusals))
    return tuple(offers)


def _makespan(found: MeasuredWorkload, text: str, *, work: float) -> float:
    """How long the workload takes on so many devices."""
    cluster: Cluster = limit_cluster(parse_cluster(text, at_hand=found.at_hand), found.workload)
    problem = dataclasses.replace(found.on(cluster), cluster=cluster)
    search: Any = functools.partial(plan_schedule, work=work)
    planned = solve(problem, found.workload, search)
    assert planned.schedule is not None
    return planned.schedule.makespan_seconds


def _doubled(most: int) -> list[int]:
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]
