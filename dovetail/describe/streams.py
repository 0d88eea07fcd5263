"""A stream of tasks as a CSV file of our own: a task a line, with its steps per second on each kind.

    task,at_seconds,steps,count,weight,deadline_seconds,v100,p100,k80
    small,0,36000,1,1,,10.5,4.0,1.2
    large,360,20000,4,2,86400,3.1,,

`task`, `at_seconds` and `steps` must be there, and a column for at least one kind; an empty rate, or a rate of zero,
means that the task does not run there. `count` is how many devices it takes (1), `weight` how much it counts for (1),
`deadline_seconds` how long after its arrival it must have ended (never), `entity` on whose behalf it runs (nobody's),
and `model`, where it is given, what is shown of it. Lines with the same count and rates are one family. Knows files and
records; does not know policies.
"""

import csv
import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from dovetail.describe.traces import Arrival
from dovetail.vocabulary import InvalidWorkload, Option

_NEEDED = ("task", "at_seconds", "steps")
_OTHERS = ("count", "weight", "deadline_seconds", "model", "entity")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Tasks that arrive, and the options that their families have."""

    arrivals: tuple[Arrival, ...]
    options: tuple[Option, ...]

    def faster(self, load: float) -> "Stream":
        """The same tasks, arriving so many times as fast.

        >>> one = Arrival(task="a", family="f", steps=1, at_seconds=60.0)
        >>> Stream(arrivals=(one,), options=()).faster(2.0).arrivals[0].at_seconds
        30.0
        """
        if not 0 < load < math.inf:
            raise InvalidWorkload(f"a load must be a number above 0 by which arrivals are faster, got {load}.")
        arrivals = tuple(dataclasses.replace(each, at_seconds=each.at_seconds / load) for each in self.arrivals)
        return dataclasses.replace(self, arrivals=arrivals)


def read_stream(path: Path) -> Stream:
    """The stream in a CSV file of our own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "trace.csv")
    ...     _ = file.write_text("task,at_seconds,steps,v100,k80\\na,0,100,4,0\\nb,9,100,4,0\\n")
    ...     found = read_stream(file)
    >>> [arrival.at_seconds for arrival in found.arrivals], [option.kind for option in found.options]
    ([0.0, 9.0], ['v100'])
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        kinds = [name for name in names if name not in (*_NEEDED, *_OTHERS)]
        missing = [name for name in _NEEDED if name not in names]
        if missing or not kinds:
            raise InvalidWorkload(
                f"{path} must have the columns {', '.join(_NEEDED)} and one of steps per second for each kind, found "
                f"{', '.join(names) or 'none'}; {missing[0] if missing else 'a kind'} is missing."
            )
        rows = [_row(row, kinds, f"line {number} of {path}") for number, row in enumerate(reader, start=2)]
    _refuse_twice([arrival.task for arrival, _ in rows], path)
    options = dict.fromkeys(option for _, found in rows for option in found)
    return Stream(arrivals=tuple(arrival for arrival, _ in rows), options=tuple(options))


def _row(row: Mapping[str, str], kinds: Iterable[str], where: str) -> tuple[Arrival, list[Option]]:
    count = int(_number(row, "count", where, default=1.0, least=1.0, whole=True))
    rates = {kind: _number(row, kind, where, default=0.0) for kind in kinds}
    able = {kind: rate for kind, rate in rates.items() if rate > 0}
    if not able:
        raise InvalidWorkload(f"{where}: task {row['task']!r} must have a rate above 0 on some kind; it has none.")
    shown = row.get("model") or " ".join(f"{kind} {rate:g}/s" for kind, rate in able.items())
    family = f"{shown} x{count}"
    if row.get("model"):  # one model may be there with two sets of rates
        family += f" {hash_of(able)}"
    options = [
        Option(families=(family,), technique="replicate", kind=kind, count=count, step_seconds=(1 / rate,))
        for kind, rate in able.items()
    ]
    arrival = Arrival(
        task=row["task"],
        family=family,
        steps=int(_number(row, "steps", where, least=1.0, whole=True)),
        at_seconds=_number(row, "at_seconds", where),
        weight=_number(row, "weight", where, default=1.0),
        deadline_seconds=_number(row, "deadline_seconds", where, default=math.inf, least=-math.inf),
        entity=row.get("entity") or "",
    )
    if not row["task"]:
        raise InvalidWorkload(f"{where}: a task must have a name; it has none.")
    if not arrival.deadline_seconds > 0:
        raise InvalidWorkload(
            f"{where}: the deadline of {arrival.task!r} must be later than its arrival, found "
            f"{arrival.deadline_seconds:g} s after it: it is past already."
        )
    return arrival, options


def hash_of(rates: Mapping[str, float]) -> str:
    """What tells one set of rates from another.

    >>> hash_of({"v100": 4.0})
    'v100=4'
    """
    return ",".join(f"{kind}={rate:g}" for kind, rate in rates.items())


def _number(
    row: Mapping[str, str],
    name: str,
    where: str,
    *,
    default: float | None = None,
    least: float = 0.0,
    whole: bool = False,
) -> float:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= least or math.isinf(number) or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise InvalidWorkload(f"{where}: {name} must be {kind} of at least {least:g}, got {text!r}.")
    return number


def _refuse_twice(names: list[str], path: Path) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise InvalidWorkload(
            f"tasks in {path} must have names of their own; {', '.join(map(repr, twice[:5]))} "
            f"{'is' if len(twice) == 1 else 'are'} there more than once."
        )
