"""How well pairs that were never measured together are predicted from a few that were, and what that is worth.

A part of `bench/share.py`. Pairs are left out on all kinds at once; what does not fit together is taken as known,
because memory is measured alone. A predicted pair that has run for a round is known from then on.
"""

import dataclasses
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reporting import Bar
from streams import cluster_of, simulate

from dovetail.describe.traces import Rates, generate, read_rates, read_trace
from dovetail.planning.problem import Problem
from dovetail.planning.share.pairs import Completion, complete
from dovetail.planning.share.policies import POLICIES
from dovetail.vocabulary import Family, Member, Option, Rejection

KINDS = ("v100", "p100", "k80")
FRACTIONS = (0.05, 0.1, 0.2, 0.5)
# The fraction of pairs measured at which the bars are held, and what is then kept of what packing gains.
HELD, GAIN_KEPT, MEDIAN_ERROR = 0.1, 0.5, 0.15
DEVICES = {"v100": 8, "p100": 16, "k80": 24}


def predicted_pairs(data: Path, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Errors on both of Gavel's tables by the fraction measured; a static and a continuous stream with predictions."""
    rows, errors = [], {}
    for name in ("simulation", "physical_cluster"):
        rates = read_rates(data / "gavel" / f"{name}_throughputs.json")
        for fraction in (HELD,) if quick else FRACTIONS:
            row = errors[name, fraction] = error_of(rates, fraction, seeds=range(1 if quick else 5))
            what = f"pairs of {name}_throughputs predicted, {fraction:.0%} measured"
            rows.append({"what": what, **row})
    rows += [static(data, quick=quick), continuous(data, quick=quick)]
    bars = [
        Bar(
            f"pairs predicted with {HELD:.0%} measured, worst median error of a rate left out",
            max(row["median_error"] for (_, fraction), row in errors.items() if fraction == HELD),
            most=MEDIAN_ERROR,
        )
    ]
    bars += [
        Bar(f"{row['what']}, share of packing's gain kept", row["gain_kept"], least=GAIN_KEPT) for row in rows[-2:]
    ]
    return rows, bars


def error_of(rates: Rates, fraction: float, *, seeds: Sequence[int]) -> dict[str, float]:
    """The median error of the rates of pairs left out, the error that the completion itself reports from those that it
    knows, and how often it says rightly whether a pair pays."""
    median, reported, right = [], [], []
    for seed in seeds:
        _, left, found = completed(rates, fraction, seed=seed)
        alone = {(o.families[0], o.kind): o.step_seconds[0] for o in rates.options(KINDS) if o.count == 1}
        truth = {(o.families, o.kind): o for o in left}
        offs, says = [], []
        for option in found.options:
            true = truth[option.families, option.kind]
            kept, really = (
                [alone[f, o.kind] / s for f, s in zip(o.families, o.step_seconds, strict=True)] for o in (option, true)
            )
            offs += [abs(one / other - 1) for one, other in zip(kept, really, strict=True)]
            says.append((sum(kept) > 1) == (sum(really) > 1))
        median.append(statistics.median(offs))
        reported.append(found.error)
        right.append(statistics.mean(says))
    return {
        "median_error": statistics.mean(median),
        "error_reported": statistics.mean(reported),
        "rightly_pays": statistics.mean(right),
    }


def completed(rates: Rates, fraction: float, *, seed: int = 0) -> tuple[list[Option], list[Option], Completion]:
    """The pairs that are known, those that are not, and what is predicted of the latter."""
    alone = rates.options(KINDS)
    pairs = [_sorted(option) for option in rates.options(KINDS, packed=True) if len(option.families) == 2]
    couples = sorted({option.families for option in pairs})
    measured = set(random.Random(seed).sample(couples, round(fraction * len(couples))))
    known = [option for option in pairs if option.families in measured]
    left = [option for option in pairs if option.families not in measured]
    fits = {(option.families, option.kind, option.count) for option in pairs}
    names = sorted({option.families[0] for option in alone})
    problem = Problem(
        cluster=cluster_of(dict.fromkeys(KINDS, 1)),
        families=tuple(Family(name=name, members=(_member(name, 0), _member(name, 1))) for name in names),
        options=(*alone, *known),
    )
    refused = [o for o in complete(problem).options if (o.families, o.kind, o.count) not in fits]
    rejections = tuple(
        Rejection(families=o.families, technique=o.technique, kind=o.kind, count=o.count, reason="does not fit")
        for o in refused
    )
    return known, left, complete(dataclasses.replace(problem, rejections=rejections))


def static(data: Path, *, quick: bool) -> dict[str, Any]:
    """Gavel's 100 tasks that are all there."""
    rates = read_rates(data / "gavel" / "physical_cluster_throughputs.json")
    arrivals = read_trace(data / "gavel" / "traces" / "physical_cluster" / "minimize_makespan.trace", rates=rates)
    if quick:
        arrivals = tuple(dataclasses.replace(each, steps=each.steps // 10 + 1) for each in arrivals[:20])
    how = {"arrivals": arrivals, "cluster": cluster_of(DEVICES), "policy": POLICIES["makespan"]}
    return worth("makespan", rates, "makespan_hours", **how)


def continuous(data: Path, *, quick: bool) -> dict[str, Any]:
    """250 generated tasks, more than 36 devices serve as they come."""
    rates = read_rates(data / "gavel" / "simulation_throughputs.json")
    drawn = generate(rates, kind="v100", tasks=20 if quick else 250, per_hour=4.0)
    how = {"cluster": cluster_of(dict.fromkeys(KINDS, 12)), "policy": POLICIES["max_min_fairness"]}
    return worth("max-min, mean", rates, "mean_hours", arrivals=drawn, least_seconds_between=1920.0, **how)


def worth(name: str, rates: Rates, measure: str, **how: Any) -> dict[str, Any]:
    """What packing gains with all pairs measured and with most of them predicted."""
    alone = rates.options(KINDS)
    known, left, found = completed(rates, HELD)
    truth = {(option.families, option.kind): option for option in left}
    predicted = [(option, truth[option.families, option.kind]) for option in found.options]
    unpacked = getattr(simulate(options=alone, **how), measure)
    packed = getattr(simulate(options=(*alone, *known, *left), **how), measure)
    guessed = getattr(simulate(options=(*alone, *known), predicted=predicted, **how), measure)
    return {
        "what": f"{name}, packed with {HELD:.0%} of the pairs measured",
        "hours": guessed,
        "hours_unpacked": unpacked,
        "hours_all_measured": packed,
        "gain_kept": (unpacked - guessed) / (unpacked - packed) if unpacked > packed else float("nan"),
    }


def _sorted(option: Option) -> Option:
    if option.families[0] <= option.families[1]:
        return option
    return dataclasses.replace(option, families=option.families[::-1], step_seconds=option.step_seconds[::-1])


def _member(name: str, number: int) -> Member:
    return Member(task=f"{name}-{number}", steps=1)
