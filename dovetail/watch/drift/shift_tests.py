"""Whether a share or a mean differs between two sets of rows by more than chance, for many combinations at once.

Under no drift, which rows are of the current window is a draw without replacement from both windows together; so the
current sum of a score has the mean, variance and skewness of such a draw. Its tail is taken from Pearson's type III
distribution (a shifted gamma) with these moments, in the direction in which it is the heavier, and from the normal one
in the other: for a rare error a normal tail would promise 1 in 10^8 and give 1 in 10^6.
"""

import numpy as np

# A mean of fewer rows than this, in either window, is not compared.
LEAST_ROWS = 20


def shifts(reference: np.ndarray, current: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far each share and each mean moved, in standard deviations, and the skewness of that under no drift.

    Takes what `tally` gives, and gives arrays of (scores, combinations); the first row is of shares. Where nothing can
    be compared it is 0.
    """
    before, after = reference[0].copy(), current[0].copy()
    total = reference + current
    mean, square, cube = (total[power] / np.maximum(total[0], 1.0) for power in (1, 2, 3))
    # A share is the mean, over all rows, of whether a row has the combination.
    mean[0] = square[0] = cube[0] = total[0, 0] / max(total[0, 0, 0], 1.0)
    before[0], after[0] = reference[0, 0, 0], current[0, 0, 0]
    moved = current[1] / np.maximum(current[0], 1.0) - reference[1] / np.maximum(reference[0], 1.0)
    moved[0] = current[0, 0] / max(after[0, 0], 1.0) - reference[0, 0] / max(before[0, 0], 1.0)
    variance = np.maximum(square - mean**2, 0.0)
    able = (before >= LEAST_ROWS) & (after >= LEAST_ROWS) & (variance > 1e-12)
    both = np.maximum(before * after, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.where(able, moved * np.sqrt(both / (before + after) / variance), 0.0)
        third = (cube - 3 * mean * square + 2 * mean**3) / variance**1.5
        skewness = np.where(able, third * (before - after) / np.sqrt((before + after) * both), 0.0)
    return deviations, skewness


def p_values(deviations: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """How likely as far a move, in either direction, is by chance.

    >>> p_values(np.array([1.96, 5.7, -5.7]), np.array([0.0, 0.32, 0.32])).round(8).tolist()
    [0.04999579, 4.43e-06, 1e-08]
    """
    from scipy import special  # type: ignore[import-untyped]

    distance = np.abs(deviations)
    one_sided = special.ndtr(-distance)
    heavy = np.sign(deviations) * skewness
    skewed = heavy > 1e-3
    shape = 4.0 / heavy[skewed] ** 2
    one_sided[skewed] = special.gammaincc(shape, shape + distance[skewed] * np.sqrt(shape))
    return np.asarray(np.minimum(2.0 * one_sided, 1.0))


def normal_bar(level: float) -> float:
    """The deviations that a normal variate exceeds, in either direction, with the chance `level`.

    >>> round(normal_bar(0.05), 2)
    1.96
    """
    from scipy import special

    return float(-special.ndtri(level / 2))
