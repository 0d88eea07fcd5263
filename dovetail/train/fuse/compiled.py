"""torch.compile where it works, and the plain function where it does not."""

import warnings
from collections.abc import Callable
from typing import Any

import torch


class Compiled:
    """Two versions of one function. The fast one is used until it fails before it has ever worked."""

    def __init__(self, function: Callable[..., Any], *, compile: bool) -> None:
        self.plain = function
        self._fast = torch.compile(function, dynamic=False) if compile else None
        self._proven = False
        self.failure: str | None = None
        """Why the plain version is used where it should not be."""

    def call(self, *given: Any) -> Any:
        """The function, in the version that works."""
        return self.run(lambda function: function(*given))

    def run(self, attempt: Callable[[Callable[..., Any]], Any]) -> Any:
        """What `attempt` gives with the version that works. `attempt` must change nothing before its function ran."""
        if self._fast is None:
            return attempt(self.plain)
        try:
            found = attempt(self._fast)
        except Exception as error:
            if self._proven:
                raise
            # The program's own errors come again from the plain version.
            self.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            self._fast = None
            found = attempt(self.plain)
            warnings.warn(f"fuse runs without torch.compile: {self.failure}", stacklevel=2)
            return found
        self._proven = True
        return found
