"""How much likelier outliers are within a combination, by three ratios, each with its interval.

Of N rows O are outliers; a combination has eo outliers among et rows.

    global       (eo/et) / (O/N)                          how much likelier than anywhere
    risk         (eo/et) / ((O-eo)/(N-et))                how much likelier than elsewhere
    prevalence   (eo/(et-eo)) / (O/(N-O))                 how much more common among outliers than among others
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

RATIOS = ("risk", "global", "prevalence")


def ratio_of(kind: str, inside: Any, rows: Any, *, outliers: float, of: float) -> "np.ndarray":
    """The ratio; infinite where there is no outlier elsewhere, 0 where there is nothing to compare.

    >>> [round(float(ratio_of(kind, 30, 100, outliers=40, of=1000)), 2) for kind in RATIOS]
    [27.0, 7.5, 10.29]
    """
    import numpy as np

    eo, et = np.asarray(inside, dtype=float), np.asarray(rows, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "global":
            found = (eo / et) / (outliers / of)
        elif kind == "risk":
            found = np.where((et == 0) | (et == of), 0.0, (eo / et) / ((outliers - eo) / (of - et)))
        else:
            found = (eo / (et - eo)) / (outliers / (of - outliers))
    return np.where(eo == 0, 0.0, found)


def most_rows(kind: str, inside: Any, least: float, *, outliers: float, of: float) -> "np.ndarray":
    """With how many rows at most a combination of so many outliers has a ratio of at least `least`: every ratio falls
    as rows grow.

    >>> float(most_rows("global", 30, 7.5, outliers=40, of=1000))
    100.0
    """
    import numpy as np

    eo = np.asarray(inside, dtype=float)
    least = max(least, 1e-12)
    if kind == "global":
        return eo * of / (outliers * least)
    if kind == "risk":
        return eo * of / (eo + least * (outliers - eo))
    return eo + eo * (of - outliers) / (least * outliers)


def interval_of(
    kind: str, inside: Any, rows: Any, *, outliers: float, of: float, confidence: float = 0.95
) -> tuple["np.ndarray", "np.ndarray"]:
    """Between what the ratio lies. The logarithm of the risk ratio is nearly normal (Katz), with a half added to each
    count (Walter), so that it has an interval where a count is zero; the other ratios rise with it, and their intervals
    are where it takes its own.

    >>> [round(float(end), 1) for end in interval_of("risk", 30, 100, outliers=40, of=1000)]
    [13.3, 50.9]
    """
    import numpy as np
    from scipy.special import ndtri  # type: ignore[import-untyped]

    eo, et = np.asarray(inside, dtype=float), np.asarray(rows, dtype=float)
    a, n, b, m = eo + 0.5, et + 0.5, outliers - eo + 0.5, of - et + 0.5
    center = np.log(a / n) - np.log(b / m)
    reach = ndtri(0.5 + confidence / 2) * np.sqrt(np.maximum(1 / a - 1 / n + 1 / b - 1 / m, 0.0))
    low, high = np.exp(center - reach), np.exp(center + reach)
    high = np.where(eo == outliers, np.inf, high)  # no outlier elsewhere: nothing bounds it
    if kind == "risk":
        return low, high
    share = et / of
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = (np.where(np.isinf(r), 1 / share, r / (share * r + 1 - share)) for r in (low, high))
        if kind == "global":
            return low, high
        rate = outliers / of
        odds = [np.minimum(rate * each, 1.0) for each in (low, high)]
        return odds[0] / (1 - odds[0]) * (1 - rate) / rate, odds[1] / (1 - odds[1]) * (1 - rate) / rate


def gain_of(inside: Any, rows: Any, *, outliers: Any, of: Any) -> Any:
    """How much likelier the outcome is, as a logarithm, if a combination has a rate of its own: the true cause has more
    than a part of it, which leaves outliers out, and more than the whole of which it is a part, which takes others in.

    >>> parts = [(20, 50), (40, 50), (40, 400)]
    >>> [round(float(gain_of(*part, outliers=40, of=1000))) for part in parts]
    [37, 143, 38]
    """
    import numpy as np
    from scipy.special import xlogy

    def likelihood(k: "np.ndarray", n: "np.ndarray") -> Any:
        return xlogy(k, k) + xlogy(n - k, n - k) - xlogy(n, n)

    eo, et, hits, total = (np.asarray(each, dtype=float) for each in (inside, rows, outliers, of))
    return likelihood(eo, et) + likelihood(hits - eo, total - et) - likelihood(hits, total)
