"""Which entries of the matrix of pairs resemble which: the prior, what follows from it, and which trials tell most.

  kept(a | b, p) = ½ + common(p) + sensitivity(a, p) + intrusion(b, p) + φ(a)ᵀ W(p) φ(b)

with Gaussian priors, under which two entries covary by

  place(p, p′) · (C + S·alike(a, a′) + S·alike(b, b′) + S·alike(a, a′)·alike(b, b′)),
  alike(a, a′) = φ(a)ᵀφ(a′) = (1 − O)·exp(−‖f − f′‖² ÷ 2), + O where a = a′;   place = 1, or R for different places.

φ is of low rank in effect: of Gavel's 26 models ten dimensions hold nine tenths of what their fingerprints tell. So the
mean and the doubt of every entry are one linear solve over the measured ones, and what would have been predicted of a
pair without measuring it is a by-product. Knows rates alone and what pairs kept; does not know problems.

What two tasks keep of their rates when they share devices, for pairs that were never measured together.

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
from numpy.typing import NDArray

from dovetail.planning.problem import Problem
from dovetail.planning.solver.linear import Indices, Numbers
from dovetail.vocabulary import Option

# The prior's constants; errors on Gavel's tables move by less than a tenth when one of them is halved or doubled.
_COMMON, _SCALE, _NOISE = 0.03, 0.03, 0.002
_OWN, _OTHER_PLACE = 0.2, 0.6
# Nobody keeps less than this, which also keeps predictions above zero.
_LEAST = 0.01
# More entries than this are thinned out when trials are chosen: their covariance is held as one matrix.
_MOST_ENTRIES = 2000

Place = tuple[str, int]
Pair = tuple[str, str, Place]
Rates = Mapping[tuple[str, Place], float]
Kept = Mapping[Pair, tuple[float, float]]


class Prior:
    """Which entries resemble which, before anything is measured; made of every family's steps per second alone.

    >>> prior = Prior({("f", ("v100", 1)): 2.0, ("g", ("v100", 1)): 3.0})
    >>> kept, doubts = prior.predict({}, (("f", "g", ("v100", 1)),))
    >>> kept.tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, alone: Rates) -> None:
        self._family = {name: number for number, name in enumerate(sorted({name for name, _ in alone}))}
        self._place = {place: number for number, place in enumerate(sorted({place for _, place in alone}))}
        prints = _fingerprints(alone, self._family, sorted({place[0] for place in self._place}))
        far = ((prints[:, None, :] - prints[None, :, :]) ** 2).sum(axis=-1)
        self._alike: Numbers = (1 - _OWN) * np.exp(-far / 2) + _OWN * np.eye(len(self._family))

    def predict(self, measured: Kept, wanted: tuple[Pair, ...]) -> tuple[Numbers, Numbers]:
        """What each of the two keeps in each wanted pair, and how doubtful the sum is."""
        entries, known = self._entries(wanted), self._entries(tuple(measured))
        values = np.array(list(measured.values())).reshape(-1)
        across = self._covariance(entries, known)
        inside = self._covariance(known, known) + _NOISE * np.eye(values.size)
        mean = 0.5 + across @ np.linalg.solve(inside, values - 0.5)
        removed = np.linalg.solve(inside, across.T)
        # Of a pair only its own two entries are needed, not the covariance with all others.
        first, second = entries[0::2], entries[1::2]
        doubt = np.zeros(len(wanted))
        for one, other in itertools.product((0, 1), repeat=2):
            before = self._diagonal((first, second)[one], (first, second)[other])
            doubt += before - (across[one::2] * removed[:, other::2].T).sum(axis=1)
        scale = self._calibration(inside, values)
        kept = np.clip(mean.reshape(-1, 2), _LEAST, 1.0)
        same = np.array([a == b for a, b, _ in wanted], dtype=bool)
        kept[same] = kept[same].mean(axis=1, keepdims=True)
        return kept, np.sqrt(np.maximum(doubt, 0.0)) * scale

    def left_out(self, measured: Kept) -> Numbers:
        """By how much the rates of each measured pair would be mispredicted, had it not been measured at any place."""
        values = np.array(list(measured.values())).reshape(-1)
        if not values.size:
            return np.zeros(0)
        known = self._entries(tuple(measured))
        inverse = np.linalg.inv(self._covariance(known, known) + _NOISE * np.eye(values.size))
        weights = inverse @ (values - 0.5)
        together: dict[tuple[str, str], list[int]] = {}
        for number, (a, b, _) in enumerate(measured):
            together.setdefault((a, b), []).extend((2 * number, 2 * number + 1))
        off = np.zeros(values.size)
        for block in together.values():
            off[block] = np.linalg.solve(inverse[np.ix_(block, block)], weights[block])
        predicted = np.clip(values - off, _LEAST, 1.0)
        errors: Numbers = np.abs(predicted / np.maximum(values, _LEAST) - 1).reshape(-1, 2).mean(axis=1)
        return errors

    def most_telling(self, known: tuple[Pair, ...], offered: tuple[Pair, ...], count: int) -> list[Pair]:
        """Greedily the pairs whose measurement removes the most of the variance of all entries."""
        step = math.ceil(2 * len(offered) / _MOST_ENTRIES) or 1
        pairs = offered[::step]
        entries = self._entries(pairs)
        cov = self._covariance(entries, entries)
        if known:
            before = self._entries(known)
            across = self._covariance(entries, before)
            inside = self._covariance(before, before) + _NOISE * np.eye(len(before))
            cov -= across @ np.linalg.solve(inside, across.T)
        chosen: list[int] = []
        for _ in range(min(count, len(pairs))):
            gains = _gains(cov)
            gains[chosen] = -1.0
            best = int(np.argmax(gains))
            chosen.append(best)
            at = [2 * best, 2 * best + 1]
            told = cov[:, at]
            cov = cov - told @ np.linalg.solve(cov[np.ix_(at, at)] + _NOISE * np.eye(2), told.T)
        return [pairs[number] for number in chosen]

    def _entries(self, pairs: tuple[Pair, ...]) -> Indices:
        """Two rows of (who, beside whom, where) for each pair."""
        rows = []
        for a, b, place in pairs:
            one, other, where = self._family[a], self._family[b], self._place[place]
            rows += [(one, other, where), (other, one, where)]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    def _covariance(self, one: Indices, other: Indices) -> Numbers:
        sensitive = self._alike[np.ix_(one[:, 0], other[:, 0])]
        intruding = self._alike[np.ix_(one[:, 1], other[:, 1])]
        there = np.where(one[:, 2][:, None] == other[:, 2][None, :], 1.0, _OTHER_PLACE)
        found: Numbers = there * (_COMMON + _SCALE * (sensitive + intruding + sensitive * intruding))
        return found

    def _diagonal(self, one: Indices, other: Indices) -> Numbers:
        sensitive, intruding = self._alike[one[:, 0], other[:, 0]], self._alike[one[:, 1], other[:, 1]]
        found: Numbers = _COMMON + _SCALE * (sensitive + intruding + sensitive * intruding)
        return found

    @staticmethod
    def _calibration(inside: Numbers, values: Numbers) -> float:
        """How many times larger than the prior expects the measured entries turn out to vary."""
        if values.size < 4:
            return 1.0
        off = values - 0.5
        return math.sqrt(float(off @ np.linalg.solve(inside, off)) / values.size)


def _gains(cov: Numbers) -> Numbers:
    """For each pair of rows, the trace that knowing both takes off: tr(V (V₂₂ + noise)⁻¹ Vᵀ), V its two columns."""
    first, second = cov[:, 0::2], cov[:, 1::2]
    a, b, c = (first**2).sum(axis=0), (first * second).sum(axis=0), (second**2).sum(axis=0)
    p = np.diag(cov)[0::2] + _NOISE
    q = np.einsum("ii->i", cov[0::2, 1::2])
    r = np.diag(cov)[1::2] + _NOISE
    gains: Numbers = (a * r - 2 * b * q + c * p) / (p * r - q * q)
    return gains


def _fingerprints(alone: Rates, families: Mapping[str, int], kinds: list[str]) -> Numbers:
    """For each family which kinds suit it, log rate there less its mean over kinds, and that mean; each over its
    spread among the families. A kind on which a family does not run says nothing of it."""
    logs = np.full((len(families), len(kinds)), np.nan)
    for (name, (kind, count)), rate in alone.items():
        at = families[name], kinds.index(kind)
        logs[at] = np.fmax(logs[at], math.log(rate / count))
    means = np.nanmean(logs, axis=1, keepdims=True)
    # One kind's figure follows from the others'.
    prints = np.hstack([(logs - means)[:, 1:], means])
    missing: NDArray[np.bool_] = np.isnan(prints)
    centred = np.where(missing, 0.0, prints - np.nanmean(prints, axis=0))
    spread = centred.std(axis=0)
    found: Numbers = centred / np.where(spread > 0, spread, 1.0)
    return found


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
