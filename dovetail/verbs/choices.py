"""What may be given by name or as an object: planners, policies, engines; and techniques, by name alone."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from dovetail.planning.techniques import techniques
from dovetail.vocabulary import DovetailError, Workload

T = TypeVar("T", bound=Callable[..., object])


def choose(what: str, given: str | T, among: Mapping[str, T]) -> T:
    """What is given, or the one of that name.

    >>> choose("planner", "lst", {"list": list, "search": dict})
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: planner must be one of joint, list, got 'lst'; did you mean 'list'?
    """
    if not isinstance(given, str):
        if not callable(given):
            raise DovetailError(f"{what} must be a name or something to call, got {given!r}.")
        return given
    check_name(what, given, among)
    return among[given]


def check_name(what: str, given: str, among: Iterable[str]) -> None:
    """Refuse a name that is none of those there are, with the nearest of them.

    >>> check_name("engine", "local", ["local", "ray"])
    """
    names = sorted(among)
    if given not in names:
        near = difflib.get_close_matches(given, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise DovetailError(f"{what} must be one of {', '.join(names)}, got {given!r}{hint}")


def check_techniques(workload: Workload) -> Workload:
    """The same workload, where all techniques that it speaks of are there.

    >>> from dovetail.describe import grid
    >>> check_techniques(grid("dovetail.testing.programs:dropout", seed=[0], steps=9, techniques="resident")).techniques
    ('resident',)
    """
    for name in workload.techniques:
        check_name("a technique (--techniques, techniques=)", name.removeprefix("-"), techniques())
    return workload
