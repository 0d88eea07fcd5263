"""How many requests come in a second, by a count that only grows."""

import time
from collections.abc import Callable

RATE_SECONDS = 10.0
"""How often a server looks whether another plan would do better."""


class RateMeter:
    """The rate since it was last asked for, however long that is: planning again and loading models take their time.

    >>> clock = iter([0.0, 10.0, 30.0])
    >>> meter = RateMeter(clock=lambda: next(clock))
    >>> meter.rate(50), meter.rate(70)
    (5.0, 1.0)
    """

    def __init__(self, asked: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._asked, self._at = clock, asked, clock()

    def rate(self, asked: int) -> float:
        """Requests a second, `asked` being all so far; nothing where a count began anew."""
        now = self._clock()
        found = max(0, asked - self._asked) / max(now - self._at, 1e-9)
        self._asked, self._at = asked, now
        return found
