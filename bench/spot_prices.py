"""Readers for prices and availability of spot devices over time, and generators of both.

Prices: a CSV, plain or gzipped, with date_utc, instance_type, region_zone, ondemand_usd_h and spot_usd_h. Availability:
JSON, `{"metadata": {"gap_seconds": s}, "data": [instances at each tick]}`.
"""

import csv
import dataclasses
import datetime
import gzip
import io
import json
import math
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dovetail.vocabulary import InvalidWorkload

_COLUMNS = ("date_utc", "instance_type", "region_zone", "ondemand_usd_h", "spot_usd_h")
# What generated prices do; `generate_prices` says from what.
_USUAL, _BETWEEN_ZONES, _MOVE, _REVERSION, _JUMPS = 0.35, 0.15, 0.02, 0.005, 0.002
# Mean and median hours that an instance is there, and gone.
_THERE, _GONE = (2.6, 0.5), (1.6, 0.4)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The prices of a day: on spot and on demand by (instance type, zone).

    >>> Day(date="2022-12-02", spot={("p2.xlarge", "a"): 0.3}, on_demand={}).spot["p2.xlarge", "a"]
    0.3
    """

    date: str
    spot: Mapping[tuple[str, str], float]
    on_demand: Mapping[tuple[str, str], float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """How many instances there were at each tick.

    >>> Availability(tick_seconds=600.0, instances=(1, 0)).instances[1]
    0
    """

    tick_seconds: float
    instances: tuple[int, ...]


def read_prices(path: Path, *, instances: Collection[str]) -> tuple[Day, ...]:
    """The days of a price history, of these instance types. A price that is missing is not offered that day; one that
    is negative or no number is refused."""
    raw = path.read_bytes()
    text = gzip.decompress(raw).decode() if path.suffix == ".gz" else raw.decode()
    days: dict[str, Day] = {}
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidWorkload(f"{path} must have the columns {', '.join(_COLUMNS)}; {missing[0]!r} is not there.")
    for number, row in enumerate(rows, start=2):
        if row["instance_type"] not in instances:
            continue
        day = days.setdefault(row["date_utc"], Day(date=row["date_utc"], spot={}, on_demand={}))
        market = (row["instance_type"], row["region_zone"])
        for prices, column in ((day.spot, "spot_usd_h"), (day.on_demand, "ondemand_usd_h")):
            if row[column]:
                prices[market] = _price(row[column], f"line {number} of {path}, {column}")  # type: ignore[index]
    absent = sorted(set(instances) - {kind for day in days.values() for kind, _ in day.spot})
    if absent:
        raise InvalidWorkload(f"every instance type must have a spot price in {path}; {absent[0]!r} has none.")
    return tuple(days[date] for date in sorted(days))


def read_availability(path: Path) -> Availability:
    """A trace of how many instances there were."""
    try:
        found = json.loads(path.read_text())
        return Availability(tick_seconds=float(found["metadata"]["gap_seconds"]), instances=tuple(found["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidWorkload(f"{path} must hold metadata.gap_seconds and data; {error} is wrong.") from None


def generate_prices(
    on_demand: Mapping[str, float], *, zones: Sequence[str], days: int, first: str = "2026-01-01", seed: int = 0
) -> tuple[Day, ...]:
    """Days of prices for instance types with these prices on demand, in every zone.

    The logarithm of spot over on demand reverts to its zone's mean, ln 0.35 ± 0.15, by 0.5% a day and moves by 2% a day
    (AWS from 2022 to 2026: means of 0.28 to 0.40, moves of 1.6 to 2.9%, autocorrelation 0.995 from day to day). Once in
    500 days it jumps to 60 to 100% of on demand and comes back within days: half of the jump is left after each. It
    is never above on demand.

    >>> days = generate_prices({"p3.2xlarge": 3.06}, zones=["a", "b"], days=100)
    >>> len(days), 0.3 < days[-1].spot["p3.2xlarge", "a"] < 3.06
    (100, True)
    """
    bad = [name for name, price in on_demand.items() if not 0 < price < math.inf]
    if bad:
        raise InvalidWorkload(f"a price on demand must be above 0, that of {bad[0]!r} is {on_demand[bad[0]]}.")
    dice = random.Random(seed)
    markets = [(kind, zone) for kind in sorted(on_demand) for zone in sorted(zones)]
    series = {market: _ratios(dice, days) for market in markets}
    begin = datetime.date.fromisoformat(first)
    return tuple(
        Day(
            date=(begin + datetime.timedelta(days=day)).isoformat(),
            spot={market: round(on_demand[market[0]] * series[market][day], 4) for market in markets},
            on_demand={market: on_demand[market[0]] for market in markets},
        )
        for day in range(days)
    )


def _ratios(dice: random.Random, days: int) -> list[float]:
    """Spot over on demand, day by day."""
    mean = math.log(_USUAL) + dice.gauss(0.0, _BETWEEN_ZONES)
    log = mean + dice.gauss(0.0, _MOVE / math.sqrt(2 * _REVERSION))
    jump, found = 0.0, []
    for _ in range(days):
        log += _REVERSION * (mean - log) + dice.gauss(0.0, _MOVE)
        jump /= 2
        if dice.random() < _JUMPS:
            jump = max(0.0, math.log(dice.uniform(0.6, 1.0)) - log)
        found.append(min(1.0, math.exp(log + jump)))
    return found


def generate_availability(
    *, ticks: int, tick_seconds: float = 300.0, instances: int = 1, seed: int = 0
) -> Availability:
    """How many of so many instances there are at each tick: each comes and goes by itself, there for 2.6 h and gone for
    1.6 h on average, for half of the times less than 0.5 h and 0.4 h (log-normal, as in the traces of single AWS and
    GCP instances from 2022 and 2023).

    >>> trace = generate_availability(ticks=5000)
    >>> 0.4 < sum(trace.instances) / 5000 < 0.8
    True
    """
    dice = random.Random(seed)
    counts = [0] * ticks
    for _ in range(instances):
        # The first turn is at once.
        here, until = dice.random() >= _THERE[0] / (_THERE[0] + _GONE[0]), 0.0
        for tick in range(ticks):
            while until <= tick * tick_seconds:
                mean, median = _THERE if (here := not here) else _GONE
                until += 3600 * dice.lognormvariate(math.log(median), math.sqrt(2 * math.log(mean / median)))
            counts[tick] += here
    return Availability(tick_seconds=tick_seconds, instances=tuple(counts))


def _price(text: str, where: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise InvalidWorkload(
            f"{where}: a price must be a number of at least 0, got {text!r}. Leave it empty if unknown."
        )
    return price
