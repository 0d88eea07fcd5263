"""Calls to whoever provides nodes or prices, which may take a minute, fail or hang: a thread's business. The loop takes
up what came of them, in the order in which they were made, and is told of one that is not answered in time."""

import collections
import concurrent.futures
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from dovetail.vocabulary import DovetailError, Event

# A call has a minute. What is wrong is named within that, by whoever is asked or, where he does not even fail, here.
LATE_SECONDS = 55.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    what: str
    future: concurrent.futures.Future[Any]
    done: Callable[[Any], list[Event]]
    failed: Callable[[str], list[Event]]


class Calls:
    """Calls to `who`, one after another on a thread of their own. Used from the loop's thread alone."""

    def __init__(self, who: str, *, now: Callable[[], float]) -> None:
        self._who, self._now = who, now
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=who.replace(" ", "-"))
        self._made: collections.deque[_Call] = collections.deque()
        self._late_seconds = math.inf  # when the call under way is to be named
        self.taken = 0
        """How many were taken up."""

    @property
    def are_answered(self) -> bool:
        """Whether nothing is under way."""
        return not self._made

    @property
    def has_news(self) -> bool:
        """Whether something is to be taken up."""
        return bool(self._made) and self._made[0].future.done()

    @property
    def late_seconds(self) -> float:
        """When the call that is under way will be late; infinite: none is, or it was named."""
        return self._late_seconds

    def make(
        self,
        what: str,
        call: Callable[[], Any],
        *,
        done: Callable[[Any], list[Event]],
        failed: Callable[[str], list[Event]],
    ) -> None:
        """Have a call made, which errors name as `what`; once it is taken up, what it gives goes to `done`, or why it
        gives nothing to `failed`."""
        self._made.append(_Call(what=what, future=self._thread.submit(call), done=done, failed=failed))
        if len(self._made) == 1:
            self._late_seconds = self._now() + LATE_SECONDS

    def take(self) -> list[Event]:
        """Take up what was answered. Never waits."""
        events: list[Event] = []
        while self.has_news:
            call, error = self._made[0], self._made[0].future.exception()
            self._made.popleft()
            self.taken += 1
            self._late_seconds = self._now() + LATE_SECONDS if self._made else math.inf
            events += call.done(call.future.result()) if error is None else call.failed(self._said(call.what, error))
        return events

    def find_late(self) -> str:
        """What is to be said of a call that is not answered in time, once; else nothing."""
        if self._now() < self._late_seconds or self.has_news:
            return ""
        self._late_seconds = math.inf
        return (
            f"{self._who} must answer {self._made[0].what!r} within {LATE_SECONDS:.0f} s; it has not. It is waited for."
        )

    def close(self) -> list[Event]:
        """Wait for what was asked, and take it up."""
        self._thread.shutdown(wait=True)
        return self.take()

    def _said(self, what: str, error: BaseException) -> str:
        if isinstance(error, DovetailError):
            return str(error)
        # It may be of others, and no mistake of theirs is to end what is trained.
        return f"{self._who} must answer {what!r}, or raise DovetailError; it raised {error!r}."
