"""How many rows a cheap score must let through so that the best ones by the whole score are among them.

Knows two scores of rows that nothing else has seen. Among the best of them by the whole score, the cheap score of the
worst becomes the threshold: how many of as many fresh ones it would miss has a known distribution (beta-binomial),
whatever the scores are.
"""

import math

import numpy


def least_top_rows(count: int, *, precision: float, confidence: float) -> int:
    """How many of the best rows must be known, for a promise about the `count` best of others, if none is missed.

    >>> least_top_rows(100, precision=0.95, confidence=0.99)
    113
    """
    rows = 1
    while _chance_kept(count, rows, 0, precision) < confidence:
        rows = rows + 1 if rows < 1000 else math.ceil(rows * 1.01)
        if rows > 10**7:  # nothing may be missed, and nobody can promise that
            return rows
    return rows


def keep_threshold(
    cheap: numpy.ndarray, whole: numpy.ndarray, *, share: float, count: int, precision: float, confidence: float
) -> float | None:
    """The cheap score from which on rows are kept, so that `precision` of the `count` best rows, which are the `share`
    best of all, are among them with this confidence; None where too few rows are known. Where fewer than needed are as
    good, more of the best stand for them: it is taken that better rows look no worse to the cheap score."""
    known = max(round(share * len(whole)), least_top_rows(count, precision=precision, confidence=confidence))
    if known > len(whole) // 2:
        return None
    best = numpy.sort(cheap[numpy.argpartition(-whole, known - 1)[:known]])
    missed = 0
    while missed + 1 < known and _chance_kept(count, known, missed + 1, precision) >= confidence:
        missed += 1
    return float(best[missed])


def _chance_kept(count: int, known: int, missed: int, precision: float) -> float:
    """How likely no more of `count` fresh rows are missed than may be, where the threshold missed so many of those
    known."""
    from scipy.stats import betabinom  # type: ignore[import-untyped]

    return float(betabinom.cdf(math.floor(count * (1 - precision) + 1e-9), count, missed + 1, known - missed))
