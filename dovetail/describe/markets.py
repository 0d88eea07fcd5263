"""Readers for prices and availability of spot devices over time.

Prices: a CSV, plain or gzipped, with date_utc, instance_type, region_zone, ondemand_usd_h and spot_usd_h. Availability:
JSON, `{"metadata": {"gap_seconds": s}, "data": [instances at each tick]}`.
"""

import csv
import dataclasses
import gzip
import io
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from dovetail.vocabulary import InvalidWorkload


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
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        if row["instance_type"] not in instances:
            continue
        day = days.setdefault(row["date_utc"], Day(date=row["date_utc"], spot={}, on_demand={}))
        market = (row["instance_type"], row["region_zone"])
        for prices, column in ((day.spot, "spot_usd_h"), (day.on_demand, "ondemand_usd_h")):
            if row[column]:
                prices[market] = _price(row[column], f"line {number} of {path}, {column}")  # type: ignore[index]
    return tuple(days[date] for date in sorted(days))


def read_availability(path: Path) -> Availability:
    """A trace of how many instances there were."""
    found = json.loads(path.read_text())
    try:
        return Availability(tick_seconds=float(found["metadata"]["gap_seconds"]), instances=tuple(found["data"]))
    except (KeyError, TypeError) as error:
        raise InvalidWorkload(f"{path} must hold metadata.gap_seconds and data; {error} is wrong.") from None


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
