"""Where something runs: what each place was measured to take, for each class of sizes. Knows neither loops nor devices.

A place is tried only where it could be faster: nothing is sent over a link that would take longer than the host takes
to compute it.
"""

import dataclasses
from collections.abc import Mapping, Sequence

TRIES = 3


@dataclasses.dataclass(slots=True)
class PlaceSeconds:
    """How long calls of one class of sizes took, at each place; the first of each is not counted, since it compiles.

    >>> seconds = PlaceSeconds()
    >>> for _ in range(8):
    ...     place = seconds.choose(["host", "cuda"])
    ...     seconds.add(place, {"host": 2.0, "cuda": 1.0}[place])
    >>> seconds.choose(["host", "cuda"])
    'cuda'
    """

    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    least: dict[str, float] = dataclasses.field(default_factory=dict)
    settled: str = ""
    """The fastest, once nothing is left to try."""

    def choose(self, places: Sequence[str], at_least: Mapping[str, float] | None = None) -> str:
        """A place that was not tried often enough, unless `at_least`, the seconds that it takes in any case, is more
        than another took; or else the fastest."""
        for place in places:
            hopeless = at_least is not None and at_least.get(place, 0.0) > min(
                self.least.values(), default=float("inf")
            )
            if self.calls.get(place, 0) <= TRIES and not hopeless:
                return place
        self.settled = min((place for place in places if place in self.least), key=lambda place: self.least[place])
        return self.settled

    def add(self, place: str, seconds: float) -> None:
        """Note that a call at this place took so long; the first one there does not count."""
        count = self.calls[place] = self.calls.get(place, 0) + 1
        if count > 1:
            self.least[place] = min(seconds, self.least.get(place, seconds))

    def give_up(self, place: str) -> None:
        """Note that this place cannot do the call, so that it is not tried again."""
        self.calls[place], self.least[place], self.settled = TRIES + 1, float("inf"), ""

    def describe(self) -> str:
        """The least seconds of each place, in words for `explain`."""
        return (
            ", ".join(f"{place} {seconds:.3g} s" for place, seconds in list(self.least.items())) or "nothing is known"
        )
