"""From which sureness on a stage of a cascade answers: chosen by rows whose labels are known, tested by others.

Knows, for each stage and row, how sure the stage was and whether its answer would have done harm; nothing of models,
features or tensors.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy

from dovetail.serve.cascades.promise import boldest_kept

T = TypeVar("T")
# From careful to bold: of what may be lost, the share that the thresholds of a setting lost on rows that chose them.
_SETTINGS = tuple(0.02 * 1.25**step for step in range(22))
# The setting by which stages are compared, before it is known which one will be kept.
_COMPARED = 0.4
# A cascade that is to save less than this is not worth its trouble.
LEAST_SAVED = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Verdicts:
    """What a stage says of rows whose labels are known: how sure it is of each, and where its answer does harm."""

    sureness: numpy.ndarray
    harms: numpy.ndarray


def find_thresholds(chain: Sequence[Verdicts], lose: float, *, setting: float = _COMPARED) -> list[float]:
    """Those at which each stage harms its part of what the setting allows, of the rows that reach it.

    >>> stage = Verdicts(numpy.array([0.9, 0.8, 0.7, 0.6]), numpy.array([False, False, True, False]))
    >>> find_thresholds([stage], 0.1), find_thresholds([stage], 0.25, setting=1.0)
    ([0.8], [0.6])
    """
    rows = len(chain[0].sureness) if chain else 0
    allowed = setting * lose * rows / max(1, len(chain))
    left, found = numpy.ones(rows, dtype=bool), []
    for stage in chain:
        order = numpy.argsort(-stage.sureness, kind="stable")
        order = order[left[order]]
        sureness = stage.sureness[order]
        within = int(numpy.searchsorted(numpy.cumsum(stage.harms[order]), allowed, side="right"))
        threshold = numpy.inf if within == 0 else sureness[within - 1]
        if within < len(order) and sureness[within] == threshold:  # rows as sure as these would be too many
            surer = sureness[sureness > threshold]
            threshold = surer.min() if len(surer) else numpy.inf
        found.append(float(threshold))
        left &= stage.sureness < threshold
    return found


def shares_reached(chain: Sequence[Verdicts], thresholds: Sequence[float]) -> list[float]:
    """The share of rows that reaches each stage, and the share that none of them answers."""
    left, found = numpy.ones(len(chain[0].sureness) if chain else 1, dtype=bool), []
    for stage, threshold in zip(chain, thresholds, strict=True):
        found.append(float(left.mean()))
        left &= stage.sureness < threshold
    return [*found, float(left.mean())]


def count_harmed(chain: Sequence[Verdicts], thresholds: Sequence[float]) -> int:
    """How many rows are answered by a stage that harms them."""
    left, harmed = numpy.ones(len(chain[0].sureness), dtype=bool), 0
    for stage, threshold in zip(chain, thresholds, strict=True):
        is_sure = left & (stage.sureness >= threshold)
        harmed += int((is_sure & stage.harms).sum())
        left &= ~is_sure
    return harmed


def grow_chain(
    candidates: Sequence[T],
    seconds: Callable[[Sequence[T]], float],
    order: Callable[[Sequence[T]], Sequence[T] | None],
) -> list[T]:
    """The chain of stages that should take least: begun with none, lengthened by whichever candidate helps most, as
    long as one helps. `order` puts stages into the order they are asked in, and gives None where they make no chain."""
    chain: list[T] = []
    best = seconds(chain)
    while True:
        longer = [found for each in candidates if each not in chain and (found := order([*chain, each])) is not None]
        taken = [seconds(each) for each in longer]
        if not longer or min(taken) >= best * (1 - LEAST_SAVED):
            return chain
        best = min(taken)
        chain = list(longer[taken.index(best)])


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """Thresholds that keep the promise and the share of the plain model's seconds that they should take, or the reason
    that there are none."""

    thresholds: tuple[float, ...] = ()
    share: float = 1.0
    why_plain: str = ""


def calibrate(
    chosen: Sequence[Verdicts],
    fresh: Sequence[Verdicts],
    seconds: Callable[[Sequence[float]], float],
    *,
    lose: float,
    confidence: float,
) -> Calibration:
    """The boldest setting, found on `chosen` rows, that keeps the promise on `fresh` ones, which nothing else has seen.
    `seconds` gives what a row should take at the shares of rows that reach each stage."""
    if not chosen:
        return Calibration(why_plain="no cheaper stage would save enough to pay for itself")
    rows = len(fresh[0].sureness)
    settings = [find_thresholds(chosen, lose, setting=setting) for setting in _SETTINGS]
    harmed = [count_harmed(fresh, thresholds) for thresholds in settings]
    kept = boldest_kept(harmed, rows, lose=lose, confidence=confidence)
    if kept is None:
        return Calibration(
            why_plain=f"even the most careful setting harmed {harmed[0]} of {rows} rows that it was calibrated with, "
            f"too many to promise a loss of at most {lose:g} with confidence {confidence:g}"
        )
    share = seconds(shares_reached(fresh, settings[kept])) / seconds([1.0])
    if share > 1 - LEAST_SAVED:
        return Calibration(why_plain=f"at thresholds that keep the promise it would take {share:.0%} of the plain time")
    return Calibration(thresholds=tuple(settings[kept]), share=share)
