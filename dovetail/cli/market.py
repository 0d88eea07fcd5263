"""What `plan --market` and `simulate --market` say: tables, and the same as JSON."""

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dovetail.cli.answering import duration, figures, say
from dovetail.verbs.console import Console, plain
from dovetail.vocabulary import DovetailError, to_json
from dovetail.vocabulary.markets import Offer, PriceHistory, RentalPlan, RentalTerms
from dovetail.vocabulary.units import show_seconds

if TYPE_CHECKING:
    from dovetail.control.simulation.renting import MarketOutcome

MarketOption = Annotated[
    str | None,
    typer.Option(
        help="Prices over time: a CSV table of time,kind,zone,market,price, or a command that prints one: prices.csv, "
        "'./prices.sh'."
    ),
]
MoveOption = Annotated[
    str, typer.Option("--move", help="With --market: how long it takes to save, move to another offer and start there.")
]
LostOption = Annotated[
    str, typer.Option("--lost", help="With --market: how much work a reclaimed spot device loses, at most.")
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", help="With --market: plan for this time instead of now, in UTC: 2025-01-31T12:00:00Z."),
]

_RULES = {
    "on_demand": "on demand",
    "single": "cheapest at the start, kept",
    "hindsight": "best single, in hindsight",
    "cheapest": "cheapest at each moment",
    "dovetail": "dovetail, looking ahead",
    "free": "cheapest, if moves were free",
}


def show_rental(found: RentalPlan, *, as_json: bool) -> None:
    """What to rent when, and what to expect."""
    from dovetail.describe.markets import show_time

    if as_json:
        saved = {"saved_over_on_demand": found.saved_over_on_demand, "saved_over_single": found.saved_over_single}
        typer.echo(json.dumps({**_record(to_json(found)), **saved}, indent=2))
        return
    table = _table("from", "for", "rent", "spend")
    for rental in found.rentals:
        offer = rental.offer
        what = "nothing: wait for a cheaper price" if offer is None else f"{offer.count:g} × {offer.market}"
        lasts = show_seconds(rental.end_seconds - rental.start_seconds)
        table.add_row(show_time(found.at_seconds + rental.start_seconds), lasts, plain(what), f"{rental.spend:,.2f}")
    console = Console()
    console.print(table)
    for line in _expectation(found, show_time(found.at_seconds + found.safe_seconds)):
        console.print(plain(line), soft_wrap=True)


def _expectation(found: RentalPlan, latest: str) -> list[str]:
    lines = [
        f"spend {found.spend:,.2f} if prices stay; on demand {found.on_demand_spend:,.2f}, the best single choice "
        f"{found.single_spend:,.2f}",
        f"reclaimed before any work is done, it starts on demand at {latest} at the latest, and is in time",
    ]
    if not found.replays:
        return [*lines, "the history is shorter than the deadline: there is nothing to say what prices may do"]
    added = 1 - found.expected_spend / found.expected_cheapest if found.expected_cheapest else 0.0
    error = (
        ""
        if found.forecast_error is None
        else f"; prices were off by {found.forecast_error:.1%} after the deadline's time, in the median"
    )
    return [
        *lines,
        f"begun at {found.replays} moments of the past, it would have cost {found.expected_spend:,.2f} on average, "
        "nine in "
        f"ten at most {found.high_spend:,.2f}{error}",
        f"that is {found.saved_over_on_demand:.1%} less than on demand, {found.saved_over_single:.1%} less than the "
        "best "
        f"single choice at the start, {added:.2%} less than the cheapest at each moment; {found.dearer_share:.0%} "
        "of the "
        "runs cost more than on demand",
    ]


def replay_market(
    market: str,
    *,
    work: str | None,
    deadlines: list[str],
    speeds: list[str],
    same_pace: bool,
    move: str,
    lost: str,
    every: str | None,
    as_json: bool,
) -> None:
    """`dovetail simulate --market`: the same work at many moments of a history, by each rule."""
    from dovetail.control.simulation.renting import simulate_market
    from dovetail.describe.markets import MarketSource

    history = MarketSource(market).ask()
    if work is None:
        raise DovetailError(
            "simulate --market must be told how long the work takes on a device of speed 1: --work 24h."
        )
    offers = rented_offers(history, work_seconds=duration(work, "--work"), speeds=speeds, same_pace=same_pace)
    terms = {"move_seconds": duration(move, "--move"), "lost_seconds": duration(lost, "--lost")}
    cases = [
        simulate_market(
            history,
            offers,
            RentalTerms(deadline_seconds=due, **terms),
            every_seconds=duration(every, "--every") if every else 0.0,
        )
        for due in ([duration(each, "--deadline") for each in deadlines] or [math.inf])
    ]
    if as_json:
        typer.echo(json.dumps([_case_record(case) for case in cases], indent=2))
    else:
        _show_cases(cases)


def rented_offers(
    history: PriceHistory, *, work_seconds: float, speeds: list[str], same_pace: bool
) -> tuple[Offer, ...]:
    """One device of each market of the history, at its kind's speed; or as many of each as are as fast as one of speed
    1.

    >>> from dovetail.vocabulary.markets import Market
    >>> history = PriceHistory(times=(0.0,), markets=(Market(kind="k80", zone="a"),), prices=((0.3,),))
    >>> [each.work_seconds for each in rented_offers(history, work_seconds=60.0, speeds=["k80=0.5"], same_pace=False)]
    [120.0]
    """
    from dovetail.describe.markets import check_kinds

    kinds = sorted({market.kind for market in history.markets})
    given = figures(speeds, "--speed", "v100=1")
    if not given and len(kinds) == 1:
        given = {kinds[0]: 1.0}
    strange = sorted(set(given) - set(kinds))
    if strange or not all(0 <= speed < math.inf for speed in given.values()):
        raise DovetailError(
            f"--speed must be at least 0 and of a kind of the market, one of {kinds}; got "
            f"{strange or list(given.values())}."
        )
    check_kinds(
        history, given, what="Give --speed KIND=NUMBER for each kind, 0 for those on which the work cannot run."
    )
    return tuple(
        Offer(
            market=market,
            count=1 / given[market.kind] if same_pace else 1,
            work_seconds=work_seconds if same_pace else work_seconds / given[market.kind],
        )
        for market in history.markets
        if given[market.kind]
    )


def _record(record: Any) -> dict[str, Any]:
    assert isinstance(record, dict)
    return record


def _case_record(case: "MarketOutcome") -> dict[str, Any]:
    return {
        "deadline_seconds": None if math.isinf(case.deadline_seconds) else case.deadline_seconds,
        "period_seconds": case.period_seconds,
        "runs": case.runs,
        "forecast_error": case.forecast_error,
        "kept": case.kept,
        "kept_of_hindsight": case.kept_of_hindsight,
        "added": case.added,
        "rules": {name: dataclasses.asdict(each) for name, each in case.rules.items()},
    }


def _show_cases(cases: "list[MarketOutcome]") -> None:
    console = Console()
    for case in cases:
        due = "no deadline" if math.isinf(case.deadline_seconds) else f"deadline {show_seconds(case.deadline_seconds)}"
        error = (
            "" if case.forecast_error is None else f", prices off by {case.forecast_error:.1%} over it in the median"
        )
        console.print(plain(f"{due}, {case.runs} runs, a decision every {show_seconds(case.period_seconds)}{error}"))
        table = _table("rule", "spend", "of on demand", "dearer", "late", "starts", "reclaims", right=1)
        for name, shown in _RULES.items():
            rule = case.rules[name]
            share = rule.spend / case.rules["on_demand"].spend if case.rules["on_demand"].spend else math.nan
            figures = (
                f"{share:.1%}",
                f"{rule.dearer:.0%}",
                f"{rule.late}",
                f"{rule.starts:.1f}",
                f"{rule.reclaims:.1f}",
            )
            table.add_row(shown, f"{rule.spend:,.2f}", *figures)
        console.print(table)
        say(
            f"on demand costs {case.over('on_demand'):.2f} ×, the single choice {case.over('single'):.3f} × as "
            "much; looking "
            f"ahead adds {case.added:.2%} over the cheapest at each moment; {case.kept:.2%} of what free moves gain "
            "is kept"
        )


def _table(*names: str, right: int = 3) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number >= right else "left", no_wrap=True)
    return table
