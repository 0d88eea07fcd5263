"""Workloads from files: `sweep.py` or `sweep.py:name`, a variable or a function that gives a workload."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.describe.programs import as_a_script, load_file
from dovetail.vocabulary import DovetailError, InvalidWorkload, ProgramError, Workload


def load_workload(named: str) -> Workload:
    """The workload in a file, by default its variable or function called `workload`.

    A workload without a name of its own is named after the file, so that two sweeps over one program are two
    workloads of a store.
    """
    place, _, name = named.partition(".py:")
    path = Path(place + ".py" if name else named)
    module = load_file(path)
    found = getattr(module, name or "workload", None)
    if callable(found):
        found = _call(found, f"{path}:{name or 'workload'}")
    if not isinstance(found, Workload):
        others = sorted(key for key, value in vars(module).items() if isinstance(value, Workload))
        hint = f" It has {others}: name one as {path}:{others[0]}." if others else " Make one with dt.grid(...)."
        raise InvalidWorkload(
            f"{path} must define a workload named {name or 'workload'!r}; found {type(found).__name__}.{hint}"
        )
    return found if found.name else dataclasses.replace(found, name=f"{path.stem}:{name}" if name else path.stem)


def _call(function: Callable[[], Any], place: str) -> Any:
    try:
        with as_a_script(place):
            return function()
    except DovetailError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{place} must give a workload; it raised {type(error).__name__}: {error}.") from error
