"""Stops asking who keeps failing, and asks again after a while, once."""

import time
from collections.abc import Callable

FAILURES, OPEN_SECONDS = 5, 10.0


class CircuitBreaker:
    """Opens after so many failures in a row; after so long one call is let through, and its end decides.

    >>> now = [0.0]
    >>> breaker = CircuitBreaker(failures=2, open_seconds=5.0, clock=lambda: now[0])
    >>> breaker.record_failure(); breaker.record_failure(); breaker.allows()
    False
    >>> now[0] = 6.0
    >>> breaker.allows(), breaker.begin(), breaker.allows()
    (True, None, False)
    >>> breaker.record_success(); breaker.allows()
    True
    """

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        open_seconds: float = OPEN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._open_seconds, self._clock = failures, open_seconds, clock
        self._failures = 0
        self._asks_again = 0.0

    def allows(self) -> bool:
        """Whether it may be asked now."""
        return self._failures < self._most or self._clock() >= self._asks_again

    def begin(self) -> None:
        """A call begins; while one tries whether it works again, no other does."""
        if self._failures >= self._most:
            self._asks_again = self._clock() + self._open_seconds

    def record_success(self) -> None:
        """Record that a call was answered: failures before it no longer count."""
        self._failures = 0

    def record_failure(self) -> None:
        """Record that a call failed; after several in a row the circuit opens and the model gets a rest."""
        self._failures += 1
        if self._failures >= self._most:
            self._asks_again = self._clock() + self._open_seconds

    def seconds_left(self) -> float:
        """The seconds until the model may be asked again; 0 where it may be now."""
        return max(0.0, self._asks_again - self._clock()) if self._failures >= self._most else 0.0
