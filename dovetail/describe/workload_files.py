"""Workloads and searches from files and modules: `sweep.py`, `sweep.py:name`, `package.sweep`, a variable or a function
that gives one."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.describe.programs import as_a_script, import_module, load_file
from dovetail.describe.searches import Search
from dovetail.vocabulary import DovetailError, InvalidWorkload, ProgramError, Workload


def load_workload(named: str) -> Workload:
    """The workload in a file or in a module (`sweep.py`, `package.sweep`), by default its variable or function called
    `workload`.

    A workload without a name of its own is named after the file, so that two sweeps over one program are two
    workloads of a store.
    """
    found = _load(named, workload=Workload)
    assert isinstance(found, Workload)
    return found


def load_described(named: str) -> Workload | Search:
    """The workload or the search in a file or in a module, by default its variable or function called `workload`, or
    `search` where it has none; named as by `load_workload`."""
    return _load(named, workload=Workload, search=Search)


def _load(named: str, **kinds: type[Workload] | type[Search]) -> Workload | Search:
    path, name = _split_place(named)
    module = import_module(path) if _is_module(path) else load_file(Path(path))
    wanted = name or next((each for each in kinds if hasattr(module, each)), next(iter(kinds)))
    found = getattr(module, wanted, None)
    if callable(found):
        found = _call(found, f"{path}:{wanted}")
    if not isinstance(found, Workload | Search) or not isinstance(found, tuple(kinds.values())):
        hint = _hint(path, vars(module), kinds)
        raise InvalidWorkload(
            f"{path} must define {_describe_wanted(name, kinds)}; found {type(found).__name__}.{hint}"
        )
    stem = path.rpartition(".")[2] if _is_module(path) else Path(path).stem
    return found if found.name else dataclasses.replace(found, name=f"{stem}:{name}" if name else stem)


def _describe_wanted(name: str, kinds: dict[str, Any]) -> str:
    if name:
        return f"a {' or a '.join(kinds)} named {name!r}"
    return " or ".join(f"a {kind} named {kind!r}" for kind in kinds)


def _hint(path: str, there: dict[str, Any], kinds: dict[str, Any]) -> str:
    others = sorted(key for key, value in there.items() if isinstance(value, tuple(kinds.values())))
    if others:
        return f" It has {others}: name one as {path}:{others[0]}."
    if any(isinstance(value, Search) for value in there.values()):
        return " It has a search, whose tasks come as results do: only 'dovetail run' and dt.run take one."
    return " Make one with dt.grid(...)."


def _split_place(named: str) -> tuple[str, str]:
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


def _call(function: Callable[[], Any], place: str) -> Any:
    try:
        with as_a_script(place):
            return function()
    except DovetailError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{place} must give a workload; it raised {type(error).__name__}: {error}.") from error
