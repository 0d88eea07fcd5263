"""From coded attributes and a mark for each outlier to the combinations behind them: count, search, judge, choose."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dovetail.vocabulary import DovetailError
from dovetail.watch.bitmaps import SetCounter, count_codes, open_counter, pack_bits, places_of
from dovetail.watch.codes import Attribute
from dovetail.watch.criteria import Criteria, Explanation, Explanations, NoUsableAttribute
from dovetail.watch.dependencies import exclusions, says_same
from dovetail.watch.growth import growth_p_values
from dovetail.watch.items import Items, count_hypotheses, make_items
from dovetail.watch.levels import find_candidates, sort_sets
from dovetail.watch.ratios import gain_of, interval_of, most_rows, ratio_of
from dovetail.watch.short_list import choose_short_list
from dovetail.watch.significance import discovery_cutoff, fisher_tail

if TYPE_CHECKING:
    import numpy as np

# The short list is chosen among so many, those that make the outcome likeliest: each has a bit for every row meanwhile.
_LISTED = 100
_RANGES = 2000


def search_combinations(attributes: Sequence[Attribute], outliers: "np.ndarray", criteria: Criteria) -> Explanations:
    """What rows that are outliers have in common that others have not."""
    import numpy as np

    rows, hits = len(outliers), int(np.count_nonzero(outliers))
    _check_outliers(hits, rows)
    kept, totals, notes = usable_attributes(attributes, rows)
    least = max(1, int(np.ceil(criteria.least_support * hits - 1e-9)))
    where = places_of(outliers, hits)
    their_codes = [each.codes.take(where) for each in kept]
    among = [count_codes(codes, len(each.values)) for each, codes in zip(kept, their_codes, strict=True)]
    items = make_items(kept, among, totals, least=least)
    counter = open_counter(items, outliers, exclusions(kept, totals), their_codes=their_codes)
    candidates = find_candidates(items, counter, least=least, order=criteria.order, rows=rows)
    if not candidates.complete:
        notes.append(
            f"combinations of more than {candidates.order} attributes were not looked at: there are too many. Give an "
            f"order, a higher least_support, or fewer attributes to see more"
        )
    sets, inside, counts = _passing(
        candidates.sets, candidates.outliers, items, counter, criteria, hits=hits, rows=rows
    )
    tests = count_hypotheses(items, totals, least=least, order=candidates.order, rows=rows)
    p_values = fisher_tail(inside, counts, outliers=hits, of=rows)
    judged = _Judged(sets, inside, counts, p_values, hits=hits, rows=rows)
    found = _LISTS[criteria.show](judged, items, counter, criteria, tests, outliers)
    return Explanations(
        found=tuple(_explanations(judged, items, criteria, found)),
        outliers=hits,
        rows=rows,
        order=candidates.order,
        tests=tests,
        notes=tuple(notes),
    )


def _check_outliers(hits: int, rows: int) -> None:
    if not hits:
        raise DovetailError(f"outliers must be some of the rows; of {rows:,} rows none is one. Give a wider condition.")
    if hits == rows:
        raise DovetailError(
            f"outliers must be some of the rows, beside others to compare with; all {rows:,} are. "
            f"Give a narrower condition."
        )


def usable_attributes(
    attributes: Sequence[Attribute], rows: int
) -> "tuple[list[Attribute], list[np.ndarray], list[str]]":
    """The attributes that can explain something, how many rows each of their codes has, and why others are left out."""
    import numpy as np

    kept: list[Attribute] = []
    totals: list[np.ndarray] = []
    notes: list[str] = []
    for each in attributes:
        counts = count_codes(each.codes, len(each.values))
        # Ranges join neighbouring values, so that a measure explains also where each row has another.
        if not each.bins and np.count_nonzero(counts) >= rows > 2:
            notes.append(f"{each.name!r} is left out: it has another value in each row")
        elif len(each.values) < 2:
            notes.append(f"{each.name!r} is left out: it has the same value in each row")
        elif copied := next(
            (one for one, own in zip(kept, totals, strict=True) if says_same(each, counts, one, own)), None
        ):
            notes.append(f"{each.name!r} is left out: it says the same of every row as {copied.name!r}")
        else:
            kept.append(each)
            totals.append(counts)
    if not kept:
        raise NoUsableAttribute(f"there must be an attribute to explain by; {'; '.join(notes) or 'none was given'}.")
    return kept, totals, notes


def _passing(
    sets: "np.ndarray",
    inside: "np.ndarray",
    items: Items,
    counter: SetCounter,
    criteria: Criteria,
    *,
    hits: int,
    rows: int,
) -> "tuple[np.ndarray, np.ndarray, np.ndarray]":
    """The sets whose ratio is high enough, their outliers and their rows."""
    import numpy as np

    limits = np.floor(most_rows(criteria.ratio, inside, criteria.least_ratio, outliers=hits, of=rows) + 1e-6)
    counts = np.zeros(len(sets), dtype=np.int64)
    is_single = np.ones(len(sets), bool) if sets.shape[1] == 1 else sets[:, 1] < 0
    counts[is_single] = items.rows[sets[is_single, 0]]
    several = np.flatnonzero(~is_single)
    several = several[sort_sets(sets[several])]
    counts[several] = counter.count(sets[several], limits[several])
    ratio = ratio_of(criteria.ratio, inside, counts, outliers=hits, of=rows)
    passing = np.flatnonzero((counts <= limits) & (ratio >= criteria.least_ratio))
    return sets[passing], inside[passing], counts[passing]


class _Judged:
    """Sets that pass, with their counts and p-values."""

    def __init__(
        self,
        sets: "np.ndarray",
        inside: "np.ndarray",
        counts: "np.ndarray",
        p_values: "np.ndarray",
        *,
        hits: int,
        rows: int,
    ) -> None:
        self.sets, self.inside, self.counts, self.p_values = sets, inside, counts, p_values
        self.hits, self.rows = hits, rows
        self.gains = gain_of(inside, counts, outliers=hits, of=rows)

    def ranked(self, numbers: "np.ndarray") -> list[int]:
        """These sets, those that make the outcome likeliest first; of equal ones the simpler, then the first."""
        import numpy as np

        sizes = (self.sets[numbers] >= 0).sum(axis=1)
        return [int(numbers[at]) for at in np.lexsort((numbers, sizes, -self.gains[numbers]))]


def _minimal(judged: _Judged, *_: object) -> list[tuple[int, int]]:
    import itertools

    import numpy as np

    there = [tuple(item for item in each if item >= 0) for each in judged.sets.tolist()]
    passing = set(there)
    kept = [
        number
        for number, each in enumerate(there)
        if not any(part in passing for size in range(1, len(each)) for part in itertools.combinations(each, size))
    ]
    return [(at, int(judged.inside[at])) for at in judged.ranked(np.array(kept, dtype=int))]


def _growing_with_cutoff(
    judged: _Judged, items: Items, counter: SetCounter, criteria: Criteria, tests: float
) -> tuple[list[int], float]:
    import numpy as np

    cutoff = partial(discovery_cutoff, tests=tests, rate=criteria.false_discoveries)
    first = cutoff(judged.p_values)
    judged.p_values = growth_p_values(
        judged.sets, judged.inside, judged.counts, judged.p_values, items=items, counter=counter, cutoff=first
    )
    final = cutoff(judged.p_values)
    ranked = judged.ranked(np.flatnonzero(judged.p_values <= final))
    return _best_ranges(ranked, judged.sets, items), final


def _best_ranges(ranked: list[int], sets: "np.ndarray", items: Items) -> list[int]:
    """Of sets of the same attributes whose ranges overlap, the first."""
    if not any(each.bins for each in items.attributes):
        return ranked
    kept: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    found = []
    for number in ranked[:_RANGES]:
        own = tuple(sorted((item for item in sets[number].tolist() if item >= 0), key=lambda i: items.attribute_of[i]))
        others = kept.setdefault(tuple(items.attribute_of[list(own)].tolist()), [])
        if not any(_overlap(own, other, items) for other in others):
            others.append(own)
            found.append(number)
    return found


def _overlap(one: tuple[int, ...], other: tuple[int, ...], items: Items) -> bool:
    return all(items.low[a] <= items.high[b] and items.low[b] <= items.high[a] for a, b in zip(one, other, strict=True))


def _growing(
    judged: _Judged, items: Items, counter: SetCounter, criteria: Criteria, tests: float, _: object
) -> list[tuple[int, int]]:
    ranked, _cutoff = _growing_with_cutoff(judged, items, counter, criteria, tests)
    return [(at, int(judged.inside[at])) for at in ranked]


def _short(
    judged: _Judged, items: Items, counter: SetCounter, criteria: Criteria, tests: float, outliers: "np.ndarray"
) -> list[tuple[int, int]]:
    ranked, cutoff = _growing_with_cutoff(judged, items, counter, criteria, tests)
    ranked = ranked[:_LISTED]
    if not ranked:
        return []
    marks = counter.mark(judged.sets[ranked])
    least = criteria.least_support * judged.hits

    def passes(eo: "np.ndarray", et: "np.ndarray", hits: int, rows: int) -> "np.ndarray":
        ratio = ratio_of(criteria.ratio, eo, et, outliers=hits, of=rows)
        # Where what is left has no other row, nothing is there to compare with.
        return (eo >= least - 1e-9) & (et < rows) & (ratio >= criteria.least_ratio)

    chosen = choose_short_list(
        marks,
        judged.inside[ranked],
        judged.counts[ranked],
        outliers=pack_bits(outliers),
        hits=judged.hits,
        rows=judged.rows,
        passes=passes,
        cutoff=cutoff,
    )
    return [(ranked[at], explains) for at, explains in chosen]


_LISTS: dict[str, Callable[..., list[tuple[int, int]]]] = {"short": _short, "growing": _growing, "minimal": _minimal}


def _explanations(
    judged: _Judged, items: Items, criteria: Criteria, found: Sequence[tuple[int, int]]
) -> Iterator[Explanation]:
    import numpy as np

    places, whole = np.array([at for at, _ in found], dtype=int), {"outliers": judged.hits, "of": judged.rows}
    inside, counts = judged.inside[places], judged.counts[places]
    ratios = ratio_of(criteria.ratio, inside, counts, **whole)
    lows, highs = interval_of(criteria.ratio, inside, counts, **whole, confidence=criteria.confidence)
    figures = zip(*(each.tolist() for each in (inside, counts, ratios, lows, highs)), strict=True)
    for (at, explains), (eo, et, ratio, low, high) in zip(found, figures, strict=True):
        yield Explanation(
            values=_values(judged.sets[at].tolist(), items),
            outlier_count=eo,
            total_count=et,
            support=eo / judged.hits,
            ratio=ratio,
            low=low,
            high=high,
            p_value=float(judged.p_values[at]),
            explains=explains,
        )


def _values(one: list[int], items: Items) -> tuple[tuple[str, str], ...]:
    own = sorted((item for item in one if item >= 0), key=lambda item: int(items.attribute_of[item]))
    attributes = [items.attributes[items.attribute_of[item]] for item in own]
    return tuple(
        (each.name, each.text(int(items.low[item]), int(items.high[item])))
        for each, item in zip(attributes, own, strict=True)
    )
