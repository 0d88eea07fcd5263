"""Workloads from files: `sweep.py` or `sweep.py:name`, a variable or a function that gives a workload."""

from pathlib import Path

from dovetail.describe.programs import load_file
from dovetail.vocabulary import InvalidWorkload, Workload


def load_workload(named: str) -> Workload:
    """The workload in a file, by default its variable or function called `workload`.

    The file's path, as it was given, says which workload of a store this is.
    """
    place, _, name = named.partition(".py:")
    path = Path(place + ".py" if name else named)
    module = load_file(path)
    found = getattr(module, name or "workload", None)
    if callable(found):
        found = found()
    if not isinstance(found, Workload):
        others = sorted(key for key, value in vars(module).items() if isinstance(value, Workload))
        hint = f" It has {others}: name one as {path}:{others[0]}." if others else " Make one with dt.grid(...)."
        raise InvalidWorkload(
            f"{path} must define a workload named {name or 'workload'!r}; found {type(found).__name__}.{hint}"
        )
    return found
