"""What one process imports, told to others that will probably import it too, so that they do it at the same time."""

import importlib.abc
import os
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.describe.installed import is_installed


class ImportTeller(importlib.abc.MetaPathFinder):
    """Finds nothing, and tells of what is looked for inside installed packages. Whatever else is imported may be the
    user's own, and is not run more often than it has to be."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._process = tell, os.getpid()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Called by Python for each module that is not imported yet."""
        if os.getpid() != self._process or name.endswith("__main__"):  # of a fork, or run and not imported
            return
        if path and any(is_installed(os.path.join(folder, "__init__.py")) for folder in map(str, path)):
            self._tell(name)
