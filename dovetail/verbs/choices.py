"""What may be given by name or as an object: planners, policies, engines."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from dovetail.vocabulary import DovetailError

T = TypeVar("T", bound=Callable[..., object])


def choose(what: str, given: str | T, among: Mapping[str, T]) -> T:
    """What is given, or the one of that name.

    >>> choose("planner", "lst", {"list": list, "search": dict})
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: planner must be one of list, search, got 'lst'; did you mean 'list'?
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
