"""Spot markets through `dovetail simulate --market`: what choosing where to rent saves, and what a deadline on spot
costs.

Prices: the daily history of p2.xlarge (K80) and p3.2xlarge (V100) in all zones, while both were offered; speeds from
Gavel's table, at the same pace: as many of each kind as work as fast as one of the fastest. g5 and p4d likewise, with
the speeds stated below. One run from the first day to the last, every move charged with twelve minutes, and once more
with six hours. Deadlines: traces of when spot was there, each as a market of its own at the prices of a V100; about a
hundred starts in each. The single choice is the market that was cheapest on the first day, in hindsight the one that
was cheapest over all days. What free moves gain over it is a fact about the prices; what looking ahead adds over
taking the cheapest at each moment, moves charged in both, is Dovetail's. `python bench/spot.py [--check] [--quick]`
"""

import argparse
import csv
import datetime
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reporting import Bar, finish, need

from dovetail.describe.traces import read_rates

DATA = Path(__file__).parents[2] / "shared" / "data"
KINDS = {"p2.xlarge": "k80", "p3.2xlarge": "v100"}
# Steps a second against one V100: an A10G by its memory bandwidth and tensor throughput, 8 A100 at 2.5 V100 each, less
# 15% for going together. Stated, not measured.
STATED = {"g5.xlarge": 1.0, "p4d.24xlarge": 17.0}
SPOT_PRICE, ON_DEMAND_PRICE = 0.92, 3.06
SLACKS = (1.1, 1.25, 1.5, 2.0)
# Of the days of a history, for starting and moving.
SPARE_DAYS = {"12min": 2, "6h": 40}
Rows = list[tuple[str, str, str, str, str]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    chosen = arguments.parse_args()
    need(DATA)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        rows, bars = prices(Path(folder), pool, quick=chosen.quick)
        more, further = deadlines(Path(folder), pool, quick=chosen.quick)
    sys.exit(finish("spot", rows + more, bars + further, check=chosen.check, quick=chosen.quick))


def simulate(market: Path, *options: str) -> list[dict[str, Any]]:
    """What `dovetail simulate --market` says."""
    command = [sys.executable, "-m", "dovetail", "simulate", "--market", str(market), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def prices(folder: Path, pool: ThreadPoolExecutor, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Every model of Gavel's table by kind and zone, and the stated speeds."""
    rates = read_rates(DATA / "gavel" / "simulation_throughputs.json").alone
    models = sorted({model for model, count in rates["v100"] if count == 1})[: 1 if quick else None]
    cases: list[tuple[str, Mapping[str, float]]] = [
        (model, {name: rates[kind].get((model, 1), 0.0) for name, kind in KINDS.items()}) for model in models
    ]
    days = 60 if quick else None
    old, new = (price_table(folder / f"{n}.csv", kinds, days) for n, kinds in enumerate((KINDS, STATED)))
    asked = [(name, speeds, old) for name, speeds in cases] + [(_stated(), STATED, new)]
    rows = list(pool.map(lambda each: compare(*each), asked))
    return rows, price_bars(rows)


def price_bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """What must hold of every model of Gavel's table, and of the last row, the stated speeds."""
    first, last = rows[:-1], rows[-1]
    return [
        _least("gain of free moves over the single choice, times", first, "free_over_single", 1.25),
        _least("gain of free moves over on demand, times", first, "free_over_on_demand", 3.8),
        _least("gain with moves charged over the single choice, times", rows, "charged_over_single", 1.25),
        _least("gain with moves charged over on demand, times", first, "charged_over_on_demand", 3.8),
        _least("share of the free-move gain kept with moves charged", first, "kept", 0.99),
        _least("share kept of the gain over the best single in hindsight", first, "kept_of_hindsight", 0.99),
        _least("g5 and p4d, gain with moves charged over on demand, times", [last], "charged_over_on_demand", 3.8),
        _least("g5 and p4d, share of the free-move gain kept", [last], "kept", 0.99),
        _least("percent added by looking ahead, twelve-minute moves", rows, "added_percent", -0.01),
        _least("percent added by looking ahead, six-hour moves", rows, "added_percent_six_hours", 0.2),
    ]


def _least(name: str, rows: list[dict[str, Any]], column: str, least: float) -> Bar:
    return Bar(f"worst {name}", min(row[column] for row in rows), least=least)


def _stated() -> str:
    return " and ".join(f"{name} at {speed:g}" for name, speed in STATED.items()) + " V100 (stated)"


def compare(name: str, speeds: Mapping[str, float], table: tuple[Path, int]) -> dict[str, Any]:
    """One long run by every rule, with short and with long moves."""
    path, days = table
    fastest = max(speeds.values())
    pace = [
        "--same-pace",
        *(word for kind, each in speeds.items() for word in ("--speed", f"{kind}={each / fastest!r}")),
    ]
    short, long = (
        simulate(path, *pace, "--work", f"{days - spare}d", "--move", move, "--lost", "0s")[0]
        for move, spare in SPARE_DAYS.items()
    )
    spends = {rule: each["spend"] for rule, each in short["rules"].items()}
    return {
        "what": name,
        "days": days,
        "free_over_single": spends["single"] / spends["free"],
        "free_over_on_demand": spends["on_demand"] / spends["free"],
        "charged_over_single": spends["single"] / spends["dovetail"],
        "charged_over_on_demand": spends["on_demand"] / spends["dovetail"],
        "kept": short["kept"],
        "kept_of_hindsight": short["kept_of_hindsight"],
        "added_percent": 100 * short["added"],
        "added_percent_six_hours": 100 * long["added"],
        "starts": short["rules"]["dovetail"]["starts"],
        "starts_cheapest": short["rules"]["cheapest"]["starts"],
    }


def price_table(path: Path, kinds: Iterable[str], most_days: int | None) -> tuple[Path, int]:
    """The shared history as a market's table, from the first to the last day on which all of these were offered, and
    how many days that is. A day that nobody recorded is left out, and those after it move up."""
    wanted, days = set(kinds), {}
    with gzip.open(DATA / "spot" / "aws_gpu_spot_daily.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["instance_type"] in wanted:
                days.setdefault(row["date_utc"], []).append(row)
    offered = [d for d in sorted(days) if {r["instance_type"] for r in days[d] if r["spot_usd_h"]} == wanted][
        :most_days
    ]
    markets = {(r["instance_type"], r["region_zone"]) for date in offered for r in days[date]}
    rows: Rows = []
    for number, date in enumerate(offered):
        found = {(r["instance_type"], r["region_zone"]): r for r in days[date]}
        for kind, zone in sorted(markets):
            row = found.get((kind, zone), {})
            rows.append((_moment(number * 86400), kind, zone, "spot", row.get("spot_usd_h", "")))
            rows.append((_moment(number * 86400), kind, zone, "on demand", row.get("ondemand_usd_h", "")))
    return write(path, rows), len(offered)


def deadlines(folder: Path, pool: ThreadPoolExecutor, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A tenth of each trace's length of work, with deadlines tight and loose. Where a trace is of several instances,
    the work takes all of them or none."""
    found = sorted((DATA / "spot" / "availability_traces").glob("*/*-node/*/*.json"))
    found = [path for path in found if "aws-10-26-2022" in str(path)][:2] if quick else found
    tables = [trace_table(folder / f"trace{number}.csv", path) for number, path in enumerate(found)]
    outcomes = list(pool.map(lambda each: keep(*each), tables))
    rows = [_row(slack, [each[number] for each in outcomes]) for number, slack in enumerate(SLACKS)]
    return rows, [
        Bar("deadlines missed", float(sum(row["late"] for row in rows)), most=0.0),
        Bar("largest mean money against on demand only", max(row["money"] for row in rows), most=1.0),
        Bar("largest share of runs dearer than on demand", max(row["dearer"] for row in rows), most=0.1),
        Bar("worst percent added by looking ahead, deadlines", min(row["added_percent"] for row in rows), least=0.0),
    ]


def keep(path: Path, work: float) -> list[dict[str, Any]]:
    """One trace, at all deadlines."""
    return simulate(
        path, "--work", f"{work:g}s", *(w for slack in SLACKS for w in ("--deadline", f"{slack * work:g}s"))
    )


def _row(slack: float, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """All runs of one slack; money is that of on demand only, for each run."""
    runs = sum(case["runs"] for case in cases)

    def mean(rule: str, what: str = "spend") -> float:
        each = ((case["rules"][rule][what], case) for case in cases)
        shares = (
            (v / case["rules"]["on_demand"]["spend"] if what == "spend" else v) * case["runs"] for v, case in each
        )
        return sum(shares) / runs

    return {
        "what": f"deadline {slack} × the work",
        "runs": runs,
        "late": sum(case["rules"]["dovetail"]["late"] for case in cases),
        "money": mean("dovetail"),
        "money_cheapest": mean("cheapest"),
        "added_percent": 100 * (1 - mean("dovetail") / mean("cheapest")),
        "dearer": mean("dovetail", "dearer"),
        "dearest_run": max(case["rules"]["dovetail"]["dearest"] for case in cases),
        "starts": mean("dovetail", "starts"),
        "reclaims": mean("dovetail", "reclaims"),
    }


def trace_table(path: Path, trace: Path) -> tuple[Path, float]:
    """A trace of when instances were there as a market's table, a row for each change and each day; and a tenth of its
    length, in seconds."""
    read = json.loads(trace.read_text())
    tick, nodes = float(read["metadata"]["gap_seconds"]), int(trace.parents[1].name.partition("-")[0])
    there = [count // nodes > 0 for count in read["data"]]
    changes = {0, len(there) - 1, *(n + 1 for n, (a, b) in enumerate(itertools.pairwise(there)) if a != b)}
    changes |= set(range(0, len(there), int(86400 / tick)))
    rows: Rows = []
    for number in sorted(changes):
        at, zone = _moment(number * tick), trace.stem.partition("_")[0]
        rows.append((at, "v100", zone, "spot", f"{SPOT_PRICE}" if there[number] else ""))
        rows.append((at, "v100", zone, "on demand", f"{ON_DEMAND_PRICE}"))
    return write(path, rows), len(there) // 10 * tick


def _moment(seconds: float) -> str:
    begin = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    return (begin + datetime.timedelta(seconds=seconds)).isoformat()


def write(path: Path, rows: Rows) -> Path:
    """A market's table."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("time", "kind", "zone", "market", "price"))
        writer.writerows(rows)
    return path


if __name__ == "__main__":
    main()
