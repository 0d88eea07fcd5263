"""How a stage's rate grows with its workers: the universal scalability law, fitted to a few noisy measurements.

    rate(a) = μ a / (1 + σ (a − 1) + κ a (a − 1))        Gunther, A General Theory of Computational Capacity, 2008

so that a / rate(a) = 1/μ + (σ/μ) (a − 1) + (κ/μ) a (a − 1) is linear in three unknowns, none of them negative.
"""

import itertools
import math
from collections.abc import Sequence

from dovetail.vocabulary.feeds import StageProfile

# Measurements of a second or two on a machine with other work differ by about this much. A further constant that
# explains less than that explains noise, and a plan would shrink from workers for it.
NOISE = 0.03
# What is farther off than this was disturbed, and how far does not matter.
_DISTURBED = 5 * NOISE
EQUAL = 1e-9
"""Rates that differ by less, as a share, are equal: that much is left of rounding."""
MOST_WORKERS = 256
"""More workers of one kind than this are never planned: each is a thread or a process that the system schedules."""


def fit_scaling(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The law's two constants, contention and coherency, from pairs of workers and rate.

    Fitted by the least sum of relative errors, none of which counts for more than a disturbed measurement does, so that
    one wild value among several moves nothing; and with no more constants than the measurements need.

    >>> contention, coherency = fit_scaling([(1, 100.0), (2, 182.0), (4, 308.0), (8, 470.0)])
    >>> round(contention, 2), coherency
    (0.1, 0.0)
    """
    found = [(workers, rate) for workers, rate in points if workers >= 1 and 0 < rate < math.inf]
    best: tuple[float, ...] = (1.0,)
    error = math.inf
    for terms in range(1, min(3, len({workers for workers, _ in found})) + 1):
        solution, left = _fit(found, terms=terms)
        if left < error - NOISE / 2 or terms == 1:
            best, error = solution, left
    inverse, *laws = best
    contention, coherency = (*(law / inverse for law in laws), 0.0, 0.0)[:2]
    return contention, coherency


def _fit(points: Sequence[tuple[int, float]], *, terms: int) -> tuple[tuple[float, ...], float]:
    """The first `terms` unknowns, none negative, with the least mean error, and that error.

    The least sum of absolute errors is found at a curve that passes through as many points as it has unknowns that are
    not zero, so with the few points that anybody measures each choice of them is tried.
    """
    best, error = (1.0,) + (0.0,) * (terms - 1), math.inf
    for used in itertools.product((True, False), repeat=terms - 1):
        columns = [0, *(number + 1 for number, wanted in enumerate(used) if wanted)]
        for chosen in itertools.combinations(points, len(columns)):
            rows = [[_term(column, workers) for column in columns] for workers, _ in chosen]
            solution = _solve(rows, [workers / rate for workers, rate in chosen])
            if solution is None or solution[0] <= 0 or min(solution) < 0:
                continue
            whole = [0.0] * terms
            for column, value in zip(columns, solution, strict=True):
                whole[column] = value
            left = _error(points, whole)
            if left < error:
                best, error = tuple(whole), left
    return best, error


def _term(column: int, workers: int) -> float:
    return (1.0, workers - 1.0, workers * (workers - 1.0))[column]


def _error(points: Sequence[tuple[int, float]], solution: Sequence[float]) -> float:
    """How far the rates of a solution are from those measured, as a share, on average."""
    found = 0.0
    for workers, rate in points:
        predicted = workers / sum(value * _term(column, workers) for column, value in enumerate(solution))
        found += min(_DISTURBED, abs(math.log(predicted / rate)))
    return found / len(points) if points else 0.0


def _solve(rows: list[list[float]], values: list[float]) -> list[float] | None:
    """A small linear system by elimination; None where its rows say the same."""
    size = len(values)
    table = [[*row, value] for row, value in zip(rows, values, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(table[row][column]))
        if abs(table[pivot][column]) < 1e-12:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        for row in range(size):
            if row != column:
                factor = table[row][column] / table[column][column]
                table[row] = [own - factor * other for own, other in zip(table[row], table[column], strict=True)]
    return [table[row][size] / table[row][row] for row in range(size)]


def peak_workers(profile: StageProfile, *, most: int = MOST_WORKERS) -> int:
    """With how many workers a stage is fastest: past that, each more makes it slower.

    >>> peak_workers(StageProfile(name="s", worker="thread", service_seconds=1.0, coherency=0.01))
    10
    """
    if not profile.service_seconds or profile.contention >= 1:
        return 1
    if not profile.coherency:
        return most
    # Where the derivative is zero; of the whole numbers around it, the first that is best.
    around = math.sqrt((1 - profile.contention) / profile.coherency)
    if around >= most:
        return most
    counts = range(max(1, math.floor(around) - 1), min(most, math.ceil(around) + 1) + 1)
    return max(counts, key=lambda count: (profile.rate(count), -count))


def least_workers(
    profile: StageProfile, items_per_second: float, *, visits: float = 1.0, most: int = MOST_WORKERS
) -> int | None:
    """The fewest workers of a stage that let so many final items pass per second, for each of which it makes `visits`
    items of its own; None where no number of them does.

    >>> least_workers(StageProfile(name="s", worker="thread", service_seconds=0.01), 250.0)
    3
    """
    peak = peak_workers(profile, most=most)
    items_per_second *= 1 - EQUAL  # or a worker more were planned for the last bit of a quotient
    if profile.rate(peak) / visits < items_per_second:
        return None
    # Rates rise up to the peak.
    low, high = 1, peak
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if profile.rate(middle) / visits >= items_per_second else (middle + 1, high)
    return low
