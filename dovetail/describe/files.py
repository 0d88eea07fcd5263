"""Workloads from files and modules: `sweep.py`, `package.sweep`, and with `:name` a variable or a function that gives a
workload."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.describe.programs import as_a_script, load_file, load_module
from dovetail.vocabulary import DovetailError, InvalidWorkload, ProgramError, Workload


def load_workload(named: str) -> Workload:
    """The workload in a file or in a module, by default its variable or function called `workload`.

    A workload without a name of its own is named after the file, so that two sweeps over one program are two
    workloads of a store.
    """
    place, name = _split(named)
    path = Path(place)
    module = load_module(place) if _is_module(place) else load_file(path)
    found = getattr(module, name or "workload", None)
    if callable(found):
        found = _called(found, f"{path}:{name or 'workload'}")
    if not isinstance(found, Workload):
        others = sorted(key for key, value in vars(module).items() if isinstance(value, Workload))
        hint = f" It has {others}: name one as {path}:{others[0]}." if others else " Make one with dt.grid(...)."
        raise InvalidWorkload(
            f"{path} must define a workload named {name or 'workload'!r}; found {type(found).__name__}.{hint}"
        )
    stem = place.rpartition(".")[2] if _is_module(place) else path.stem
    return found if found.name else dataclasses.replace(found, name=f"{stem}:{name}" if name else stem)


def _split(named: str) -> tuple[str, str]:
    """A file or module, and what is wanted of it, if that was said."""
    place, _, name = named.partition(".py:")
    if name:
        return f"{place}.py", name
    place, _, name = named.rpartition(":")
    return (place, name) if place and _is_module(place) and name.isidentifier() else (named, "")


def _is_module(place: str) -> bool:
    """Whether a module is meant: names with dots between them, none of them that of a file that is there."""
    parts = place.split(".")
    return parts[-1] != "py" and all(part.isidentifier() for part in parts) and not Path(place).is_file()


def _called(function: Callable[[], Any], place: str) -> Any:
    try:
        with as_a_script(place):
            return function()
    except DovetailError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{place} must give a workload; it raised {type(error).__name__}: {error}.") from error
