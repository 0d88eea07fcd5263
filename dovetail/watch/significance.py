"""Whether a count may be chance: Fisher's exact test, and false discoveries controlled over everything tested."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# A tail has converged once its next term adds less than this part of it.
_NEGLIGIBLE = 1e-9
# Below this a p-value passes whatever cutoff there is; its tail is bounded from above by a geometric series.
_CERTAIN = 1e-25


def fisher_tail(inside: Any, rows: Any, *, outliers: Any, of: Any) -> "np.ndarray":
    """Fisher's exact test, one-sided: of `of` rows `outliers` are outliers; how likely is it that so many rows, drawn
    without a look at that, have at least `inside` outliers among them?

    The first term by the logarithms of binomials, the next by their ratio; all at once.

    >>> round(float(fisher_tail(3, 4, outliers=4, of=8)), 6)  # Fisher's lady, who named three cups of four
    0.242857
    """
    import numpy as np
    from scipy.special import gammaln  # type: ignore[import-untyped]

    def log_choose(n: "np.ndarray", k: "np.ndarray") -> Any:
        return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

    given = np.broadcast_arrays(*(np.asarray(each, dtype=float) for each in (inside, rows, outliers, of)))
    k, n, hits, total = (each.flatten() for each in given)
    most, least = np.minimum(n, hits), np.maximum(0.0, n + hits - total)
    at = np.clip(k, least, most)
    term = np.exp(log_choose(hits, at) + log_choose(total - hits, n - at) - log_choose(total, n))
    fall = (hits - at) * (n - at) / np.maximum((at + 1) * (total - hits - n + at + 1), 1)
    is_certain = (term < _CERTAIN) & (fall < 1)
    tail = np.where(is_certain, term / np.where(is_certain, 1 - fall, 1), term)
    open_tails = np.flatnonzero((at < most) & ~is_certain)
    while len(open_tails):
        i = open_tails
        term[i] *= (hits[i] - at[i]) * (n[i] - at[i]) / ((at[i] + 1) * (total[i] - hits[i] - n[i] + at[i] + 1))
        tail[i] += term[i]
        at[i] += 1
        # Terms rise up to the expected count and fall from there on, ever faster.
        is_rising = at[i] * total[i] < hits[i] * n[i]
        open_tails = i[(at[i] < most[i]) & (is_rising | (term[i] > _NEGLIGIBLE * tail[i]))]
    found = np.where(k > most, 0.0, np.where(k <= least, 1.0, np.minimum(tail, 1.0)))
    return found.reshape(given[0].shape)


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
