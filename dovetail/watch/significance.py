"""Whether a count may be chance: Fisher's exact test, and false discoveries controlled over everything tested."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# A tail has converged once its next term adds less than this part of it.
_NEGLIGIBLE = 1e-9
# So many terms are added at once.
_TERMS = 16
# Below this a p-value passes whatever cutoff there is; its tail is bounded from above by a geometric series.
_CERTAIN = 1e-25
_SMALL = 16
_SMALL_LOGS = [math.lgamma(n + 1) for n in range(_SMALL + 1)]


def fisher_tail(inside: Any, rows: Any, *, outliers: Any, of: Any) -> "np.ndarray":
    """Fisher's exact test, one-sided: of `of` rows `outliers` are outliers; how likely is it that so many rows, drawn
    without a look at that, have at least `inside` outliers among them?

    The first term by the logarithms of binomials, the next by their ratio; all at once.

    >>> round(float(fisher_tail(3, 4, outliers=4, of=8)), 6)  # Fisher's lady, who named three cups of four
    0.242857
    """
    import numpy as np

    given = np.broadcast_arrays(*(np.asarray(each, dtype=float) for each in (inside, rows, outliers, of)))
    k, n, hits, total = (each.flatten() for each in given)
    most, least = np.minimum(n, hits), np.maximum(0.0, n + hits - total)
    at = np.clip(k, least, most)
    others, rest = total - hits, n - at
    logs = _log_factorials(np.stack((hits, others, n, total - n, at, hits - at, rest, others - rest, total)))
    term = np.exp(logs[:4].sum(axis=0) - logs[4:].sum(axis=0))
    fall = (hits - at) * (n - at) / np.maximum((at + 1) * (total - hits - n + at + 1), 1)
    is_certain = (term < _CERTAIN) & (fall < 1)
    tail = np.where(is_certain, term / np.where(is_certain, 1 - fall, 1), term)
    open_tails = np.flatnonzero((at < most) & ~is_certain)
    while len(open_tails):
        i = open_tails
        x, last = at[i, None] + np.arange(_TERMS), at[i] + _TERMS
        ratios = (hits[i, None] - x) * (n[i, None] - x) / ((x + 1) * (others[i, None] - n[i, None] + x + 1))
        terms = term[i, None] * np.cumprod(ratios, axis=1)  # none but 0 from the last on that can be
        tail[i] += terms.sum(axis=1)
        term[i], at[i] = terms[:, -1], last
        # Terms rise up to the expected count and fall from there on, ever faster.
        is_rising = last * total[i] < hits[i] * n[i]
        open_tails = i[(last < most[i]) & (is_rising | (terms[:, -1] > _NEGLIGIBLE * tail[i]))]
    found = np.where(k > most, 0.0, np.where(k <= least, 1.0, np.minimum(tail, 1.0)))
    return found.reshape(given[0].shape)


def _log_factorials(n: "np.ndarray") -> "np.ndarray":
    """Logarithms of factorials: by Stirling's series, whose first neglected term is below 1e-13 from 16 on, and below
    that from a table.

    >>> import numpy as np
    >>> [round(each, 9) for each in _log_factorials(np.array([0.0, 5.0, 17.0])).tolist()]
    [0.0, 4.787491743, 33.50507345]
    """
    import numpy as np

    x = np.maximum(n, _SMALL)
    squared = x * x
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / squared) / squared) / squared) / x
    large = (x + 0.5) * np.log(x) - x + 0.5 * math.log(2 * math.pi) + series
    found: np.ndarray = np.where(n < _SMALL, np.array(_SMALL_LOGS)[np.minimum(n, _SMALL).astype(int)], large)
    return found


def discovery_cutoff(p_values: "np.ndarray", *, tests: float, rate: float) -> float:
    """Benjamini and Hochberg's cutoff: those with a p-value of at most this are discoveries, of which on average at
    most `rate` are false. `tests` are all that could have been found, with those not among `p_values`; -1 where there
    is no discovery.

    >>> import numpy as np
    >>> discovery_cutoff(np.array([0.001, 0.009, 0.04]), tests=10, rate=0.05)
    0.009
    """
    import numpy as np

    ordered = np.sort(p_values)
    passing = np.flatnonzero(ordered <= rate * np.arange(1, len(ordered) + 1) / max(tests, len(ordered), 1))
    return float(ordered[passing[-1]]) if len(passing) else -1.0
