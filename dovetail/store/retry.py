"""Try again what a network or a busy server made fail, with growing pauses, for a limited time.

What passes is told from what stays: a missing file, refused keys or a full disk are as they are at the second try, and
are said at once. Knows errors of HTTP clients by their names, so that none has to be installed.
"""

import errno
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

RETRY_SECONDS = 20.0
"""How long after its first failure an operation is tried again. Below the 30 s after which a gang whose ranks all wait
counts as stalled (`engines/worker_engine`)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
_PASSING_NUMBERS = {
    errno.EAGAIN, errno.EBUSY, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.EREMOTEIO,
    errno.ETIMEDOUT,
}  # fmt: skip
_PASSING_CLASSES = {
    "aiohttp.client_exceptions.ClientError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "botocore.parsers.ResponseParserError",
}
_STAYING_CLASSES = {"botocore.exceptions.SSLError", "botocore.exceptions.ProxyConnectionError"}
_TOO_MANY_REQUESTS = 429
# Not the global generator: training draws from that one, and what it learns must not depend on a server's health.
_jitter = random.SystemRandom()

Done = TypeVar("Done")


def retry(work: Callable[[], Done], *, seconds: float = RETRY_SECONDS) -> Done:
    """What `work` gives, called again while it fails with what passes, until `seconds` after its first failure.

    >>> answers = iter([ConnectionResetError("cut"), 7])
    >>> def ask():
    ...     if isinstance(answer := next(answers), Exception):
    ...         raise answer
    ...     return answer
    >>> retry(ask)
    7
    """
    until = None
    for pause in _pauses():
        try:
            return work()
        except Exception as error:
            now = time.monotonic()
            until = now + seconds if until is None else until
            if not is_passing(error) or now + pause > until:
                raise
        time.sleep(pause)
    raise AssertionError("pauses never end")


def is_passing(error: BaseException) -> bool:
    """Whether the same call may go well a moment later.

    >>> is_passing(TimeoutError()), is_passing(FileNotFoundError()), is_passing(PermissionError())
    (True, False, False)
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    status = response_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500 or status == _TOO_MANY_REQUESTS:
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_NUMBERS:
        return True
    names = {f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__}
    return bool(names & _PASSING_CLASSES) and not names & _STAYING_CLASSES


def response_of(error: BaseException) -> dict[str, Any]:
    """What a server of S3's protocol answered, as botocore has it; empty where nothing did.

    >>> response_of(OSError("disk"))
    {}
    """
    for each in (error, error.__cause__):
        if isinstance(found := getattr(each, "response", None), dict):
            return found
    return {}


def _pauses() -> Iterator[float]:
    """Doubling, each drawn between half of it and all of it, so that workers that failed together come back apart."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * _jitter.uniform(0.5, 1.0)
        pause = min(2 * pause, _LONGEST_PAUSE)
