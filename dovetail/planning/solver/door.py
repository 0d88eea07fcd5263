"""The one place that imports a solver, and what is said when it gives up.

OR-tools is imported when something is first solved, because that takes half a second which `dovetail --help` should
not.
"""

import functools
import importlib
from typing import Any


class NotSolved(Exception):
    """A solver gave up without an answer; never met in practice, and never passed over in silence.

    >>> issubclass(NotSolved, Exception)
    True
    """


@functools.cache
def load(name: str) -> Any:
    """A module of OR-tools, imported at the first call.

    >>> load("ortools.linear_solver.pywraplp").__name__
    'ortools.linear_solver.pywraplp'
    """
    return importlib.import_module(name)
