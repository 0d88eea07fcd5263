"""Things that a process has one of, made when somebody first asks."""

import functools
import threading
from collections.abc import Callable
from typing import Any

_making = threading.RLock()


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Like `functools.cache`, for what several threads may ask for first: one makes it, the others wait.

    >>> numbers = once(lambda start: [start])
    >>> numbers(1) is numbers(1), numbers(1) is numbers(2)
    (True, False)
    """
    cached = functools.cache(make)

    @functools.wraps(make)
    def made(*args: Any) -> Any:
        with _making:
            return cached(*args)

    return made
