"""What came of a simulated stream, in figures and in series over time, from where each task ran and when."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.control.loop import Controller
from dovetail.describe.traces import Arrival
from dovetail.metrics.progress import Progress, Span
from dovetail.vocabulary import Cluster, Option

# Series are means over so many windows of equal length, from the first arrival to the last end.
WINDOWS = 120

Series = tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """`seconds` holds for each task the time from its arrival to its end. `starts` counts each time that a task started
    on devices; `busy` is the share of all devices' time that was in use until the last end, and `spend` what that time
    comes to, where kinds have prices.

    `utilisation` is the same over time, and `fairness` Jain's index of what tasks that were there have done, in time on
    their best option, for each second that they were there: 1 where all fare alike. Both by seconds.

    >>> Outcome(seconds={"a": 3600.0}, makespan_seconds=7200.0, starts=1, lost=0, busy=0.5).mean_hours
    1.0
    """

    seconds: Mapping[str, float]
    makespan_seconds: float
    starts: int
    lost: int
    busy: float
    spend: float = 0.0
    missed: tuple[str, ...] = ()
    cpu_seconds: float = 0.0
    allocations: int = 0
    utilisation: Series = ()
    fairness: Series = ()

    @property
    def mean_hours(self) -> float:
        """The mean time from arrival to end."""
        return float(np.mean(list(self.seconds.values()))) / 3600

    @property
    def makespan_hours(self) -> float:
        """When the last task ended."""
        return self.makespan_seconds / 3600

    def quantile_hours(self, share: float) -> float:
        """The time from arrival to end that this share of the tasks do not exceed.

        >>> Outcome(seconds={"a": 3600.0}, makespan_seconds=7200.0, starts=1, lost=0, busy=0.5).quantile_hours(0.5)
        1.0
        """
        return float(np.quantile(list(self.seconds.values()), share)) / 3600


def outcome_of(
    arrivals: Sequence[Arrival],
    controller: Controller,
    *,
    cluster: Cluster,
    options: Iterable[Option],
    cpu_seconds: float,
    allocations: int,
    lost: int,
) -> Outcome:
    """The figures of a simulation that is over."""
    identities = {task.name: identity for identity, task in controller.tasks.items()}
    progress = controller.progress
    stood = [(arrival, progress[identities[arrival.task]]) for arrival in arrivals]
    seconds = {arrival.task: _end(one) - arrival.at_seconds for arrival, one in stood if one.status == "finished"}
    prices = {kind.name: kind.price_per_hour for kind in cluster.kinds}
    by_device = {device.name: prices[device.kind] for device in cluster.devices}
    held = _held([span for _, one in stood for span in one.spans], by_device)
    last = float(held[:, 1].max(initial=0.0))
    used = float(((held[:, 1] - held[:, 0]) * held[:, 2]).sum())
    devices = len(cluster.devices)
    edges = np.linspace(min(arrival.at_seconds for arrival in arrivals), max(last, 1e-9), WINDOWS + 1)
    return Outcome(
        seconds=seconds,
        makespan_seconds=last,
        starts=sum(len(one.spans) for _, one in stood),
        lost=lost,
        busy=used / (devices * max(last, 1e-9)),
        spend=float(((held[:, 1] - held[:, 0]) * held[:, 3]).sum()) / 3600,
        missed=tuple(a.task for a, _ in stood if seconds.get(a.task, np.inf) > a.deadline_seconds),
        cpu_seconds=cpu_seconds,
        allocations=allocations,
        utilisation=_utilisation(held, edges, devices),
        fairness=_fairness(stood, edges, _best(options)),
    )


def _end(one: Progress) -> float:
    return one.spans[-1].end_seconds or 0.0


def _held(spans: Iterable[Span], prices: Mapping[str, float]) -> NDArray[np.float64]:
    """Start, end, device count and price of an hour of each placement; the tasks of a gang have one together."""
    found: dict[str, tuple[float, float, float, float]] = {}
    for span in spans:
        end = span.end_seconds or span.start_seconds
        before = found[span.placement][1] if span.placement in found else 0.0
        price = sum([prices[device] for device in span.devices])
        found[span.placement] = (span.start_seconds, max(end, before), float(len(span.devices)), price)
    return np.array(list(found.values()), dtype=float).reshape(-1, 4)


def _utilisation(held: NDArray[np.float64], edges: NDArray[np.float64], devices: int) -> Series:
    """Device seconds until an edge: the sum over starts before it of what has passed since, less that over ends."""
    until = _passed(held[:, 0], held[:, 2], edges) - _passed(held[:, 1], held[:, 2], edges)
    shares = np.diff(until) / (np.diff(edges) * devices)
    return tuple(zip(edges[1:].tolist(), np.clip(shares, 0.0, 1.0).tolist(), strict=True))


def _passed(
    moments: NDArray[np.float64], weights: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    order = np.argsort(moments)
    counts = np.concatenate([[0.0], np.cumsum(weights[order])])
    sums = np.concatenate([[0.0], np.cumsum((weights * moments)[order])])
    places = np.searchsorted(moments[order], edges)
    result: NDArray[np.float64] = counts[places] * edges - sums[places]
    return result


def _fairness(
    stood: Iterable[tuple[Arrival, Progress]], edges: NDArray[np.float64], best: Mapping[str, float]
) -> Series:
    total, squares, present = (np.zeros(edges.size - 1) for _ in range(3))
    for arrival, one in stood:
        if not one.spans:
            continue
        moments = [arrival.at_seconds] + [at for s in one.spans for at in (s.start_seconds, s.end_seconds or 0.0)]
        steps = [0.0] + [float(step) for s in one.spans for step in (s.from_step, s.to_step)]
        here = np.diff(np.clip(edges, arrival.at_seconds, moments[-1]))
        done = np.diff(np.interp(edges, moments, steps)) * best[arrival.family]
        # Whoever was there for a moment of a window only says little about it.
        counts = here > 0.5 * (edges[1] - edges[0])
        fared = np.where(counts, done / np.maximum(here, 1e-9), 0.0)
        total += fared
        squares += fared**2
        present += counts
    shown = (present > 1) & (squares > 0)
    index = total[shown] ** 2 / (present[shown] * squares[shown])
    return tuple(zip(edges[1:][shown].tolist(), index.tolist(), strict=True))


def _best(options: Iterable[Option]) -> dict[str, float]:
    found: dict[str, float] = {}
    for option in options:
        if len(option.families) == 1:
            name = option.families[0]
            found[name] = min(found.get(name, np.inf), option.step_seconds[0])
    return found
