"""What two tasks keep of their rates when they share devices, for pairs that were never measured together.

kept(a | b, p) is the rate of family a beside family b at a place p, a kind and a count, over its rate alone there. It
is completed from the pairs that were measured, as a matrix of low rank whose factors follow the families' fingerprints,
their own rates on each kind (`prior`). What leaving a measured pair out would have predicted is the error reported.
Where nothing was measured, one half for both says that together they do as much as in turns, which no policy takes.

On Gavel's two tables (26 models, 3 kinds, couples left out on all kinds at once) the median error of a rate is 11 and
15% with 5% of the couples measured, 9 and 11% with 10%, 4 and 6% with 50%; what is reported is a tenth to a fifth more.
Alternating least squares of rank 2, a matrix for each kind, gave 16 and 22%, 11 and 14%, 5 and 5% there.

Knows options; does not know policies, nor how trials are run.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.pairs.prior import Pair, Place, Prior
from dovetail.vocabulary import Option

TECHNIQUE = "interleave"
_Alone = Mapping[tuple[str, Place], Option]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """The pairs of a problem's families that were not measured, as predicted.

    `options` are the pairs, marked as not measured, and `doubts` the standard deviation of each one's combined
    rate, both over alone. `errors` holds, for each measured pair, by how much its rates would have been mispredicted
    without it, as a share of them.

    >>> from dovetail.planning.share.policies import example
    >>> found = complete(example())
    >>> [(option.families, option.kind) for option in found.options][:2]
    [(('large', 'large'), 'fast'), (('large', 'large'), 'slow')]
    >>> found.options[0].measured, len(found.doubts) == len(found.options)
    (False, True)
    """

    options: tuple[Option, ...]
    doubts: tuple[float, ...]
    errors: tuple[float, ...]
    _prior: Prior
    _known: tuple[Pair, ...]

    @property
    def error(self) -> float:
        """The median error; not a number where fewer than two couples were measured.

        >>> from dovetail.planning.share.policies import example
        >>> complete(example()).error
        nan
        """
        return float(np.median(self.errors)) if len({pair[:2] for pair in self._known}) > 1 else math.nan

    def trials(self, count: int) -> tuple[Option, ...]:
        """The pairs, at most so many, whose trials would leave the least doubt about all of them, first the one that
        removes the most. Each is chosen as if those before it had been made: how much a trial tells does not depend on
        what it finds. A trial takes a few steps, so all of them count as equally cheap.

        >>> from dovetail.planning.share.policies import example
        >>> [option.families for option in complete(example()).trials(1)]
        [('large', 'large')]
        """
        offered = {_pair(option): option for option in self.options}
        chosen = self._prior.most_telling(self._known, tuple(offered), count)
        return tuple(offered[pair] for pair in chosen)


def complete(problem: Problem) -> Completion:
    """Predict every pair of the problem's families that run alone at the same place, were not measured together, were
    not rejected, and fit the device together if their bytes are known.

    >>> from dovetail.planning.share.policies import POLICIES, example
    >>> from dataclasses import replace
    >>> problem = example()
    >>> more = replace(problem, options=(*problem.options, *complete(problem).options))
    >>> POLICIES["max_min_fairness"](more).value >= POLICIES["max_min_fairness"](problem).value * (1 - 1e-6)
    True
    """
    alone = _alone(problem.options)
    measured = _measured(problem.options, alone)
    prior = Prior({key: 1 / option.step_seconds[0] for key, option in alone.items()})
    wanted = tuple(pair for pair in _pairs(problem, alone) if pair not in measured)
    kept, doubts = prior.predict(measured, wanted)
    options = tuple(
        _option(pair, alone, (float(first), float(second))) for pair, (first, second) in zip(wanted, kept, strict=True)
    )
    return Completion(
        options=options,
        doubts=tuple(doubts.tolist()),
        errors=tuple(prior.left_out(measured).tolist()),
        _prior=prior,
        _known=tuple(measured),
    )


def _alone(options: Iterable[Option]) -> dict[tuple[str, Place], Option]:
    best: dict[tuple[str, Place], Option] = {}
    for option in options:
        if len(option.families) == 1:
            key = (option.families[0], (option.kind, option.count))
            if key not in best or option.step_seconds[0] < best[key].step_seconds[0]:
                best[key] = option
    return best


def _measured(options: Iterable[Option], alone: _Alone) -> dict[Pair, tuple[float, float]]:
    """What the two kept, of every pair that was measured."""
    found: dict[Pair, tuple[float, float]] = {}
    for option in options:
        if len(option.families) != 2 or option.technique != TECHNIQUE or not option.measured:
            continue
        place = (option.kind, option.count)
        rates = dict(zip(option.families, option.step_seconds, strict=True))
        a, b = sorted(option.families)
        if (a, place) in alone and (b, place) in alone:
            kept = [alone[name, place].step_seconds[0] / rates[name] for name in (a, b)]
            found[a, b, place] = (kept[0], kept[1])
    return found


def _pairs(problem: Problem, alone: _Alone) -> Iterable[Pair]:
    names = sorted({family.name for family in problem.families if family.members})
    sizes = {family.name: len(family.members) for family in problem.families}
    rejected = {
        (*sorted(each.families), (each.kind, each.count)) for each in problem.rejections if len(each.families) == 2
    }
    memory = {kind.name: kind.memory_bytes or math.inf for kind in problem.cluster.kinds}
    places = sorted({place for _, place in alone})
    for (a, b), place in itertools.product(itertools.combinations_with_replacement(names, 2), places):
        one, other = alone.get((a, place)), alone.get((b, place))
        if one is None or other is None or (a, b, place) in rejected or (a == b and sizes[a] < 2):
            continue
        if one.device_bytes + other.device_bytes <= memory.get(place[0], 0.0):
            yield (a, b, place)


def _pair(option: Option) -> Pair:
    a, b = option.families
    return a, b, (option.kind, option.count)


def _option(pair: Pair, alone: _Alone, kept: tuple[float, float]) -> Option:
    a, b, place = pair
    one, other = alone[a, place], alone[b, place]
    return Option(
        families=(a, b),
        technique=TECHNIQUE,
        kind=place[0],
        count=place[1],
        step_seconds=(one.step_seconds[0] / kept[0], other.step_seconds[0] / kept[1]),
        start_seconds=max(one.start_seconds, other.start_seconds),
        device_bytes=one.device_bytes + other.device_bytes,
        host_bytes=one.host_bytes + other.host_bytes,
        disk_bytes=one.disk_bytes + other.disk_bytes,
        cores=one.cores + other.cores,
        measured=False,
    )
