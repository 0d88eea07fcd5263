"""Where the devices' time went: every second of every device under one cause, so that they add up to the whole."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from dovetail.metrics.spans import active_seconds
from dovetail.vocabulary import FrozenDict
from dovetail.vocabulary.events import DevicesReleased

# Who is silent for longer than this was not running.
PAUSE_SECONDS = 60.0
CAUSES = {
    "training": "steps of tasks",
    "waiting for data": "steps that waited for their next batch",
    "evaluating": "evaluations",
    "saving": "checkpoints written",
    "loading": "checkpoints read",
    "building": "programs called, to look at tasks and to train them",
    "trials": "options measured",
    "guarding": "pairs of trainings, exact and approximate, that show what approximations cost",
    "importing": "torch and the runner imported by workers",
    "handing over": "orders on their way, ranks waiting for each other",
    "idle": "nothing to do while other devices had, or nothing that fits",
    "deciding": "no device had anything to do: starting, planning, recording",
}
"""Each cause and what it means, in the order in which they are shown."""
# What a worker says it is doing while it trains, where that is not a cause by itself.
_WORDS = {
    "step": "training",
    "data": "waiting for data",
    "opening": "building",
    "reading": "handing over",
    "waiting": "handing over",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Device seconds by cause, and the seconds that the whole took, pauses between two runs left out.

    >>> Account(seconds={"training": 6.0, "idle": 2.0}, whole_seconds=4.0, devices=2).share("training")
    0.75
    """

    seconds: Mapping[str, float] = FrozenDict()
    whole_seconds: float = 0.0
    devices: int = 0
    busy_seconds: float | None = None
    """Device seconds in which devices computed, whatever for; None where some order did not measure that."""

    @property
    def utilisation(self) -> float | None:
        """The part of all devices' time in which they computed, as far as is known.

        >>> Account(whole_seconds=4.0, devices=2, busy_seconds=6.0).utilisation
        0.75
        """
        total = self.devices * self.whole_seconds
        return min(1.0, self.busy_seconds / total) if self.busy_seconds is not None and total else None

    def share(self, cause: str) -> float:
        """The part of all devices' time."""
        total = self.devices * self.whole_seconds
        return self.seconds.get(cause, 0.0) / total if total else 0.0


def account(
    released: Sequence[DevicesReleased],
    *,
    devices: int,
    moments: Iterable[float] = (),
    stretches: Iterable[tuple[float, float]] = (),
) -> Account:
    """Account for the time from the first of these `moments`, or the first order, to the last. Who has seen too many
    moments to keep them all gives the `stretches` of time between whose moments there was no pause.

    >>> one = DevicesReleased(at_seconds=10.0, placement="p", duration_seconds=8.0, purpose="train", devices=("n0:0",),
    ...                       seconds=FrozenDict({"building": 1.0, "step": 6.5}))
    >>> found = account([one], devices=2, moments=[0.0, 10.0])
    >>> dict(found.seconds), found.whole_seconds
    ({'building': 1.0, 'training': 6.5, 'handing over': 0.5, 'deciding': 4.0, 'idle': 8.0}, 10.0)
    """
    known = [each for each in released if each.devices]
    if not known or devices < 1:
        return Account()
    seconds: dict[str, float] = {}
    for each in known:
        for cause, spent in _causes(each).items():
            seconds[cause] = seconds.get(cause, 0.0) + spent * len(each.devices)
    orders = [(each.at_seconds - each.duration_seconds, each.at_seconds) for each in known]
    whole = sum(end - start for start, end in _stretches([*orders, *stretches, *((m, m) for m in moments)]))
    busy = sum(seconds.values())
    seconds["deciding"] = devices * max(0.0, whole - active_seconds(orders))
    seconds["idle"] = max(0.0, devices * whole - busy - seconds["deciding"])
    told = [each.busy_seconds for each in known if each.busy_seconds is not None]
    computing = sum(told) if len(told) == len(known) else None
    return Account(seconds=FrozenDict(seconds), whole_seconds=whole, devices=devices, busy_seconds=computing)


def _causes(order: DevicesReleased) -> dict[str, float]:
    """The seconds of an order by cause. What its worker does not account for it was on its way."""
    whole = {"fingerprint": "building", "measure": "trials", "guard": "guarding"}.get(order.purpose)
    found: dict[str, float] = {}
    for word, spent in order.seconds.items():
        cause = "importing" if word == "importing" else whole or _WORDS.get(word, word)
        cause = cause if cause in CAUSES else "training"
        found[cause] = found.get(cause, 0.0) + spent
    said = sum(found.values())
    if said > order.duration_seconds > 0:  # the worker's clock and ours
        found = {cause: spent * order.duration_seconds / said for cause, spent in found.items()}
        said = order.duration_seconds
    rest = whole or ("handing over" if found else "training")
    found[rest] = found.get(rest, 0.0) + order.duration_seconds - said
    return found


def _stretches(pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """These intervals as longer ones between which there is a pause."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(pairs):
        if found and start - found[-1][1] <= PAUSE_SECONDS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
