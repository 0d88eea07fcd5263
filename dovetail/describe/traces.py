"""Readers for published measurements and traces, and generators of both: what happens to a shared cluster.

The formats are Gavel's (tables of steps per second, alone and in pairs; tab-separated traces) and Philly's (a CSV of
jobs). Knows files and records; does not know policies.
"""

import ast
import csv
import dataclasses
import datetime
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.vocabulary import InvalidWorkload, Option

Key = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A task that comes at a time: its family, its steps, its weight, when it must have ended, and on whose behalf it
    runs. `rounded` says that it asked for more devices than it was measured on, and takes the most that it was."""

    task: str
    family: str
    steps: int
    at_seconds: float
    weight: float = 1.0
    deadline_seconds: float = math.inf
    entity: str = ""
    rounded: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Steps per second by kind: `alone` of a model on so many devices, `pairs` of two that share them.

    >>> rates = Rates(alone={"v100": {("LM", 1): 4.0}}, pairs={"v100": {}})
    >>> [option.step_seconds for option in rates.options(["v100"])]
    [(0.25,)]
    """

    alone: Mapping[str, Mapping[Key, float]]
    pairs: Mapping[str, Mapping[tuple[Key, Key], tuple[float, float]]]

    def options(self, kinds: Sequence[str], *, packed: bool = False, free_counts: bool = False) -> tuple[Option, ...]:
        """The options of all families on these kinds, `packed` with pairs. Where counts are free, a family is a model,
        which runs on any count that was measured; else it is a model on its count."""
        missing = [kind for kind in kinds if kind not in self.alone]
        if missing:
            raise InvalidWorkload(f"kinds must be among those measured, {sorted(self.alone)}; got {missing[0]!r}.")
        found = []
        for kind in kinds:
            for key, rate in self.alone[kind].items():
                found.append(_option((key,), kind, (rate,), free_counts=free_counts))
            for pair, rates in self.pairs[kind].items() if packed else ():
                found.append(_option(pair, kind, rates, free_counts=free_counts))
        return tuple(found)


def family_name(key: Key, *, free_counts: bool = False) -> str:
    """What a family is called: its model and, where that is fixed, its count.

    >>> family_name(("LM", 2)), family_name(("LM", 2), free_counts=True)
    ('LM x2', 'LM')
    """
    return key[0] if free_counts else f"{key[0]} x{key[1]}"


def read_rates(path: Path) -> Rates:
    """A table of Gavel's: `{kind: {"('MODEL', count)": {"null": alone, "('OTHER', count)": [this, other]}}}`.

    A rate of zero, and a pair of which one has none, does not fit and is absent.
    """
    table = json.loads(path.read_text())
    alone: dict[str, dict[Key, float]] = {}
    pairs: dict[str, dict[tuple[Key, Key], tuple[float, float]]] = {}
    for kind, rows in table.items():
        keys = {name: _key(name, path) for name in rows}
        for name, row in rows.items():
            if not 0 <= row["null"] < math.inf:
                raise InvalidWorkload(f"rates in {path} must be at least 0, {keys[name]} has {row['null']}.")
        alone[kind] = {keys[name]: row["null"] for name, row in rows.items() if row["null"] > 0}
        pairs[kind] = {
            (keys[name], keys[other]): (rate[0], rate[1])
            for name, row in rows.items()
            for other, rate in row.items()
            if other in keys and keys[name] <= keys[other] and min(rate) > 0
        }
    return Rates(alone=alone, pairs=pairs)


def read_trace(path: Path, *, rates: Rates, free_counts: bool = False) -> tuple[Arrival, ...]:
    """A trace of Gavel's, a task a line, in either of its two formats. Models must be in the table of rates.

    Ten fields: type, command, directory, steps argument, needs data, steps, count, weight, deadline in seconds from the
    arrival (−1: none), arrival in seconds. Seven fields: type, command, steps argument, needs data, steps, arrival in
    seconds, count. The latter give jobs of Philly's virtual clusters types at random, so they ask for counts on which
    a type was never measured; such a task takes the greatest measured count below, as `Arrival.rounded` says.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"line {number} of {path}"
        fields = line.split("\t")
        if len(fields) not in (7, 10):
            raise InvalidWorkload(f"{where} must have 7 or 10 fields between tabs, found {len(fields)}.")
        old = len(fields) == 7
        steps, at_seconds, count = fields[4:] if old else (fields[5], fields[9], fields[6])
        asked = (fields[0], int(count))
        key = _measured_below(asked, rates) if old else asked
        _refuse_unknown(key, rates, where)
        deadline = -1.0 if old else float(fields[8])
        found.append(
            Arrival(
                task=f"t{number - 1}",
                family=family_name(key, free_counts=free_counts),
                steps=int(steps),
                at_seconds=float(at_seconds),
                weight=1.0 if old else float(fields[7]),
                deadline_seconds=deadline if deadline > 0 else math.inf,
                rounded=key != asked,
            )
        )
    return tuple(found)


def read_philly(path: Path, *, rates: Rates, kind: str, tasks: int, seed: int = 0) -> tuple[Arrival, ...]:
    """The first jobs of a Philly log, a line each: timestamp, duration in seconds, device count, device time, virtual
    cluster. The log does not say what was trained: a model is drawn for each, with as many steps as fill its duration
    on `kind`; counts are rounded to those that were measured."""
    dice = random.Random(seed)
    with path.open(newline="") as file:
        rows = sorted((_philly(row, path) for row in csv.DictReader(file)), key=lambda row: row[0])[:tasks]
    measured = rates.alone[kind]
    by_count = {count: sorted(key for key in measured if key[1] == count) for _, count in measured}
    found = []
    for number, (at, seconds, devices) in enumerate(rows):
        count = max(count for count in by_count if count <= max(1, devices))
        key = dice.choice(by_count[count])
        steps = max(1, round(seconds * measured[key]))
        found.append(
            Arrival(
                task=f"t{number}",
                family=family_name(key),
                steps=steps,
                at_seconds=at - rows[0][0],
                rounded=count < devices,
            )
        )
    return tuple(found)


def generate(
    rates: Rates,
    *,
    kind: str,
    tasks: int,
    per_hour: float,
    counts: Mapping[int, float] | None = None,
    seed: int = 0,
) -> tuple[Arrival, ...]:
    """Arrivals drawn as Gavel draws them: a Poisson process; 60·10^U(1.5, 3) s on `kind` for 80% of the tasks and
    60·10^U(3, 4) s for the others; counts by weight, on one device only if not given.

    >>> rates = Rates(alone={"v100": {("LM", 1): 4.0}}, pairs={"v100": {}})
    >>> len(generate(rates, kind="v100", tasks=3, per_hour=2.0))
    3
    """
    dice = random.Random(seed)
    chances = counts or {1: 1.0}
    by_count = {count: sorted(key for key in rates.alone[kind] if key[1] == count) for count in chances}
    at_seconds, found = 0.0, []
    for number in range(tasks):
        count = dice.choices(list(chances), weights=list(chances.values()))[0]
        key = dice.choice(by_count[count])
        exponent = dice.uniform(1.5, 3.0) if dice.random() < 0.8 else dice.uniform(3.0, 4.0)
        steps = max(1, round(60 * 10**exponent * rates.alone[kind][key]))
        found.append(Arrival(task=f"t{number}", family=family_name(key), steps=steps, at_seconds=at_seconds))
        at_seconds += dice.expovariate(per_hour / 3600)
    return tuple(found)


def _option(keys: tuple[Key, ...], kind: str, rates: Sequence[float], *, free_counts: bool) -> Option:
    return Option(
        families=tuple(family_name(key, free_counts=free_counts) for key in keys),
        technique="replicate" if len(keys) == 1 else "interleave",
        kind=kind,
        count=keys[0][1],
        step_seconds=tuple(1 / rate for rate in rates),
    )


def _key(name: str, path: Path) -> Key:
    try:
        model, count = ast.literal_eval(name)
        return str(model), int(count)
    except (ValueError, SyntaxError, TypeError):
        raise InvalidWorkload(f"{path} must name its rows \"('MODEL', count)\", found {name!r}.") from None


def _measured_below(key: Key, rates: Rates) -> Key:
    """The model on the greatest count that was measured and is not above the one asked for; itself if there is none."""
    counts = {count for alone in rates.alone.values() for model, count in alone if model == key[0]}
    return key[0], max((count for count in counts if count <= key[1]), default=key[1])


def _refuse_unknown(key: Key, rates: Rates, where: str) -> None:
    if not any(key in alone for alone in rates.alone.values()):
        models = sorted({model for alone in rates.alone.values() for model, _ in alone})
        counts = sorted({count for alone in rates.alone.values() for model, count in alone if model == key[0]})
        known = f"on {counts} devices" if counts else f"among {', '.join(map(repr, models[:5]))} and so on"
        raise InvalidWorkload(
            f"{where}: a model must be in the table of rates with a rate above 0, {key[0]!r} on {key[1]} devices is "
            f"not; known {known}."
        )


def _philly(row: Mapping[str, str], path: Path) -> tuple[float, float, int]:
    try:
        moment = datetime.datetime.fromisoformat(row["timestamp"]).replace(tzinfo=datetime.UTC)
        return moment.timestamp(), float(row["duration"]), int(row["num_gpus"])
    except (KeyError, ValueError) as error:
        raise InvalidWorkload(f"{path} must have timestamp, duration and num_gpus in every line; {error}.") from None
