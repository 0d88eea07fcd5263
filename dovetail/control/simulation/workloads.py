"""Where simulated streams come from: files in three formats, or dice."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from dovetail.describe.streams import Stream, read_stream
from dovetail.describe.traces import Arrival, Key, Rates, generate, read_philly, read_rates, read_trace
from dovetail.planning import Problem
from dovetail.planning.options.kinds import SHEETS
from dovetail.planning.share.pairs import Completion, complete
from dovetail.vocabulary import Cluster, DovetailError, Family, InvalidWorkload, Member, TaskId

# Models that stand for what people train, by what a step of theirs does on one device: floating-point operations, and
# bytes moved through its memory. Small ones are bound by memory and gain little from a fast kind, large ones gain all.
_STOCK = {
    "recommender": (2e9, 6e9),
    "small-cnn": (8e10, 4e9),
    "large-cnn": (1.5e12, 1.6e10),
    "lstm": (1.2e11, 1e10),
    "small-transformer": (1.3e12, 8e9),
    "large-transformer": (9e12, 2.4e10),
}
# What kinds reach of what their sheets say, and what a step costs however small it is.
_REACHED = 0.4
_STEP_SECONDS = 0.004
_COUNTS = (1, 2, 4, 8)
# Of twice the devices, the steps per second become so much more: the rest is lost to exchanging gradients.
_DOUBLED = 1.85


def imagined_rates(kinds: Iterable[str]) -> Rates:
    """Rates of a few models on these kinds, from the kinds' data sheets, for where nothing was measured.

    >>> sorted(imagined_rates(["v100"]).alone["v100"])[0]
    ('large-cnn', 1)
    """
    alone: dict[str, dict[Key, float]] = {}
    for kind in kinds:
        if kind not in SHEETS:
            raise InvalidWorkload(
                f"a kind must be one with a data sheet to imagine rates on, {sorted(SHEETS)}, got {kind!r}. Give "
                "--rates with what was measured."
            )
        sheet = SHEETS[kind]
        alone[kind] = {
            (model, count): _DOUBLED**place
            / (_STEP_SECONDS + max(flops / (_REACHED * sheet.half_flops), moved / (_REACHED * sheet.memory_rate)))
            for model, (flops, moved) in _STOCK.items()
            for place, count in enumerate(_COUNTS)
        }
    return Rates(alone=alone, pairs={kind: {} for kind in alone})


def read_any(
    path: Path, *, kinds: Sequence[str], rates: Path | None = None, packed: bool = False, tasks: int = 0, seed: int = 0
) -> Stream:
    """The stream in a file: a CSV of our own, a trace of Gavel's or a log of Philly's, told apart by its first line.

    The last two come with `rates`, a table of Gavel's. A log of Philly's does not say what was trained: models are
    drawn from the table or, without one, from a few that are imagined. `tasks` takes only so many, the first.
    """
    try:
        with path.open() as file:
            first = file.readline()
        if "at_seconds" in first:
            found = read_stream(path)
            return Stream(arrivals=_first(found.arrivals, tasks), options=found.options)
        table = _table(rates, kinds)
        if "num_gpus" in first:
            arrivals = read_philly(
                path, rates=table, kind=_measured(kinds, table)[0], tasks=tasks or 1 << 60, seed=seed
            )
        else:
            arrivals = _first(read_trace(path, rates=table), tasks)
    except DovetailError:
        raise
    except (OSError, ValueError) as error:
        raise InvalidWorkload(
            f"a trace must be a CSV with task, at_seconds, steps and a column for each kind, a trace of Gavel's, or a "
            f"log of Philly's; {path} is none: {error}."
        ) from None
    return Stream(arrivals=arrivals, options=table.options(_measured(kinds, table), packed=packed))


def _table(rates: Path | None, kinds: Sequence[str]) -> Rates:
    if rates is None:
        return imagined_rates(kinds)
    try:
        return read_rates(rates)
    except DovetailError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidWorkload(
            f"rates must be a table of Gavel's, JSON of kinds, models and steps per second; {rates} is not: {error!r}."
        ) from None


def draw(
    tasks: int,
    *,
    per_hour: float,
    kinds: Sequence[str],
    rates: Path | None = None,
    packed: bool = False,
    several: bool = False,
    seed: int = 0,
) -> Stream:
    """A stream of so many tasks from dice: they arrive at random, so many an hour; `several` lets a third of them take
    2 to 8 devices, else all take one.

    >>> len(draw(5, per_hour=2.0, kinds=["v100"]).arrivals)
    5
    """
    if tasks < 1 or not 0 < per_hour < float("inf"):
        raise InvalidWorkload(
            f"a stream must have at least 1 task and a rate above 0 an hour, got {tasks} and {per_hour}."
        )
    table = _table(rates, kinds)
    known = _measured(kinds, table)
    counts = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05} if several else None
    arrivals = generate(table, kind=known[0], tasks=tasks, per_hour=per_hour, counts=counts, seed=seed)
    return Stream(arrivals=arrivals, options=table.options(known, packed=packed))


def with_predicted_pairs(stream: Stream, cluster: Cluster) -> tuple[Stream, Completion]:
    """The stream with options for the pairs of its families that were not measured together, predicted from those that
    were; in the simulation they come true. What the prediction is worth stands in its `error`.

    >>> from dovetail.planning.options.kinds import parse_cluster
    >>> from dovetail.vocabulary import Option
    >>> fields = {"technique": "resident", "kind": "v100", "count": 1}
    >>> alone = [Option(families=(name,), step_seconds=(1.0,), **fields) for name in "ab"]
    >>> fields["technique"] = "interleave"
    >>> both = Option(families=("a", "a"), step_seconds=(1.3, 1.3), **fields)
    >>> arrivals = tuple(Arrival(task=name, family=name, steps=1, at_seconds=0.0) for name in "ab")
    >>> stream = Stream(arrivals=arrivals, options=(*alone, both))
    >>> more, found = with_predicted_pairs(stream, parse_cluster("1xv100"))
    >>> more.options[-1].families, more.options[-1].measured
    (('a', 'b'), False)
    """
    if not any(len(option.families) > 1 for option in stream.options):
        raise InvalidWorkload(
            "pairs must be predicted from some that were measured together; there are none. Give --rates with a table "
            "that has pairs."
        )
    members: dict[str, list[Member]] = {}
    for arrival in stream.arrivals:
        members.setdefault(arrival.family, []).append(Member(task=TaskId(arrival.task), steps=arrival.steps))
    families = tuple(Family(name=name, members=tuple(mine)) for name, mine in members.items())
    found = complete(Problem(cluster=cluster, families=families, options=stream.options))
    return dataclasses.replace(stream, options=(*stream.options, *found.options)), found


def _measured(kinds: Sequence[str], table: Rates) -> list[str]:
    known = [kind for kind in kinds if kind in table.alone]
    if not known:
        raise InvalidWorkload(
            f"the cluster must have a kind that was measured, one of {sorted(table.alone)}; it has {list(kinds)}."
        )
    return known


def _first(arrivals: tuple[Arrival, ...], tasks: int) -> tuple[Arrival, ...]:
    return arrivals[:tasks] if tasks else arrivals
