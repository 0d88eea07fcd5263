"""Spot markets: what choosing kind and zone every day saves, and what keeping a deadline on spot costs.

Prices: the daily history of p2.xlarge (K80) and p3.2xlarge (V100) in all zones, on the days on which both were offered;
speeds from Gavel's table. g5 and p4d: on the days they share, with speeds stated below. Every move takes MOVING_SECONDS
that are paid for and do nothing (saving, a new instance, loading), and loses LOST_SECONDS of work. Static is the market
that was cheapest on the first day, which is what somebody knows who chooses once; in hindsight, the one that was
cheapest over all days. `python bench/spot.py [--check] [--quick]`
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from reporting import Bar, finish, need
from spot_markets import (
    Chooser,
    Market,
    Quote,
    Standing,
    by_deadline,
    cheapest_now,
    cheapest_with_moves,
    stay,
)
from spot_prices import Availability, Day, read_availability, read_prices

from dovetail.describe.traces import read_rates

DATA = Path(__file__).parents[2] / "shared" / "data"
DAY = 86400.0
MOVING_SECONDS, LOST_SECONDS = 600.0, 120.0
KINDS = {"p2.xlarge": "k80", "p3.2xlarge": "v100"}
# Steps a second against one V100: an A10G by its memory bandwidth and tensor throughput, 8 A100 at 2.5 V100 each, less
# 15% for going together. Stated, not measured.
STATED = {"g5.xlarge": 1.0, "p4d.24xlarge": 17.0}
SPOT_PRICE, ON_DEMAND_PRICE = 0.92, 3.06
GAIN_KEPT = 0.85


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    chosen = arguments.parse_args()
    need(DATA)
    rows, bars = prices(quick=chosen.quick)
    more, further = deadlines(quick=chosen.quick)
    sys.exit(finish("spot", rows + more, bars + further, check=chosen.check, quick=chosen.quick))


def prices(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Every model of Gavel's table by kind and zone, and the stated speeds."""
    path = DATA / "spot" / "aws_gpu_spot_daily.csv.gz"
    rates = read_rates(DATA / "gavel" / "simulation_throughputs.json").alone
    models = sorted({model for model, count in rates["v100"] if count == 1})[: 3 if quick else None]
    old = shared_days(read_prices(path, instances=KINDS), KINDS)
    rows = []
    for model in models:
        speeds = {name: rates[kind].get((model, 1), 0.0) for name, kind in KINDS.items()}
        rows.append(compare(model, old[:60] if quick else old, speeds))
    bars = [
        Bar("worst gain of free moves over static, times", min(row["free_over_static"] for row in rows), least=1.25),
        Bar(
            "worst gain of free moves over on demand, times",
            min(row["free_over_on_demand"] for row in rows),
            least=3.8,
        ),
        Bar(
            "worst share of the free-move gain kept with moves charged",
            min(row["kept"] for row in rows),
            least=GAIN_KEPT,
        ),
        Bar(
            "worst share kept of the gain over the best static in hindsight",
            min(row["kept_of_hindsight"] for row in rows),
            least=GAIN_KEPT,
        ),
    ]
    new = shared_days(read_prices(path, instances=STATED), STATED)
    rows.append(compare(_stated(), new[:60] if quick else new, STATED))
    kept = min(rows[-1]["kept"], rows[-1]["kept_of_hindsight"])
    return rows, [*bars, Bar("g5 and p4d, worst share of the free-move gain kept", kept, least=GAIN_KEPT)]


def _stated() -> str:
    return " and ".join(f"{name} at {speed:g}" for name, speed in STATED.items()) + " V100 (stated)"


def shared_days(days: tuple[Day, ...], instances: dict[str, Any]) -> list[Day]:
    """The days on which all of these were offered somewhere."""
    return [day for day in days if {name for name, _ in day.spot} >= set(instances)]


def compare(name: str, days: list[Day], speeds: dict[str, float]) -> dict[str, Any]:
    """What a step costs on average, by policy."""
    free = spend(days, speeds, cheapest_now, moving_seconds=0.0, lost_seconds=0.0)
    static = spend(days, speeds, stay, moving_seconds=0.0, lost_seconds=0.0)
    choose = cheapest_with_moves(period_seconds=DAY, moving_seconds=MOVING_SECONDS + LOST_SECONDS)
    ours = spend(days, speeds, choose, moving_seconds=MOVING_SECONDS, lost_seconds=LOST_SECONDS)
    naive = spend(days, speeds, cheapest_now, moving_seconds=MOVING_SECONDS, lost_seconds=LOST_SECONDS)
    hindsight = _best_static(days, speeds)
    on_demand = min(
        price / 3600 / speeds[market[0]]
        for day in days
        for market, price in day.on_demand.items()
        if speeds.get(market[0], 0.0) > 0
    )
    return {
        "what": name,
        "days": len(days),
        "free_over_static": static[0] / free[0],
        "free_over_on_demand": on_demand / free[0],
        "charged_over_static": static[0] / ours[0],
        "kept": _kept(static[0], ours[0], free[0]),
        "free_over_hindsight": hindsight / free[0],
        "kept_of_hindsight": _kept(hindsight, ours[0], free[0]),
        "kept_by_cheapest_now": _kept(static[0], naive[0], free[0]),
        "moves": ours[1],
        "moves_cheapest_now": naive[1],
    }


def _best_static(days: list[Day], speeds: dict[str, float]) -> float:
    """What a step costs on average in the market that is cheapest over all days, of those offered on all."""
    always = set.intersection(*(set(day.spot) for day in days))
    means = [sum(day.spot[m] for day in days) / len(days) / 3600 / speeds[m[0]] for m in always if speeds[m[0]] > 0]
    return min(means, default=float("nan"))


def _kept(static: float, charged: float, free: float) -> float:
    """What is left of the gain; all of it where there is none to be had and none is lost."""
    return (static - charged) / (static - free) if static > free else float(charged <= static)


def spend(
    days: list[Day], speeds: dict[str, float], choose: Chooser, *, moving_seconds: float, lost_seconds: float
) -> tuple[float, int]:
    """Money for each step when the market is chosen at the start of every day, and how often the task moved.

    The same steps are done every day: on days with a move, and on slower kinds, the task runs longer and pays for it.
    """
    standing, paid, moves = Standing(), 0.0, 0
    for day in days:
        quotes = [
            Quote(market=Market(kind=kind, zone=zone), price_per_hour=price, steps_per_second=speeds[kind])
            for (kind, zone), price in day.spot.items()
            if speeds.get(kind, 0.0) > 0
        ]
        following = choose(quotes, standing)
        here = next(quote for quote in quotes if quote.market == following.market)
        paid += here.price_per_step
        if standing.market is not None and following.market != standing.market:
            moves += 1
            steps = DAY * here.steps_per_second
            paid += (moving_seconds + lost_seconds) / 3600 * here.price_per_hour / steps
        standing = following
    return paid / len(days), moves


def deadlines(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Tasks on the availability traces, begun at several moments, with deadlines tight and loose. Where a trace is of
    several instances, a task takes all of them or none."""
    found = sorted((DATA / "spot" / "availability_traces").glob("*/*-node/*/*.json"))
    traces = [whole_gangs(read_availability(path), path) for path in found[: 4 if quick else None]]
    rows, late, dearest = [], 0, 0.0
    for slack in (1.1, 1.25, 1.5, 2.0):
        runs = [outcome for trace in traces for outcome in starts(trace, slack)]
        kept = sum(kept for kept, _ in runs)
        late += len(runs) - kept
        money = [price for _, price in runs]
        mean = sum(money) / len(money)
        dearest = max(dearest, mean)
        rows.append({"what": f"deadline {slack} × the work", "runs": len(runs), "kept_deadlines": kept / len(runs)})
        rows[-1]["money_against_on_demand"] = mean
        rows[-1]["dearest_run"] = max(money)
        rows[-1]["runs_dearer_than_on_demand"] = sum(price > 1 for price in money) / len(money)
    return rows, [
        Bar("deadlines missed", float(late), most=0.0),
        Bar("largest mean money against on demand only", dearest, most=1.0),
    ]


def whole_gangs(trace: Availability, path: Path) -> Availability:
    """How many gangs of all instances of a trace there are at each tick; the folder says how many instances that is."""
    nodes = int(path.parents[1].name.partition("-")[0])
    return Availability(
        tick_seconds=trace.tick_seconds, instances=tuple(instances // nodes for instances in trace.instances)
    )


def starts(trace: Availability, slack: float) -> list[tuple[bool, float]]:
    """Runs of a tenth of the trace's length of work, begun every tenth of it while the deadline is within the trace."""
    ticks = len(trace.instances)
    work = ticks // 10 * trace.tick_seconds
    firsts = range(0, ticks - int(ticks // 10 * slack) - 1, max(1, ticks // 10))
    return [keep_deadline(trace, first, work, slack * work) for first in firsts]


def keep_deadline(trace: Availability, first: int, work: float, deadline: float) -> tuple[bool, float]:
    """Whether the deadline was kept, and the money against on demand only."""
    tick, now, left, paid, on = trace.tick_seconds, 0.0, work, 0.0, "wait"
    starting = 0.0
    while left > 0:
        there = trace.instances[min(first + int(now / tick), len(trace.instances) - 1)] > 0
        # Once it pays for devices that cannot be taken away, it stays there.
        if on != "on demand":
            chosen = by_deadline(
                work_seconds=left + starting,
                left_seconds=deadline - now,
                spot_offered=there,
                moving_seconds=MOVING_SECONDS + LOST_SECONDS,
                period_seconds=tick,
            )
            if on == "spot" and not there:
                left = min(work, left + LOST_SECONDS)
            if chosen != on:
                starting = MOVING_SECONDS if chosen != "wait" else 0.0
            on = chosen
        price = {"spot": SPOT_PRICE, "on demand": ON_DEMAND_PRICE, "wait": 0.0}[on]
        if on != "wait":
            busy = min(tick, starting + left)
            paid += busy / 3600 * price
            left -= max(0.0, busy - starting)
            starting = max(0.0, starting - busy)
            now += busy if left <= 0 else tick
        else:
            now += tick
    return now <= deadline * (1 + 1e-9), paid / ((work + MOVING_SECONDS) / 3600 * ON_DEMAND_PRICE)


if __name__ == "__main__":
    main()
