"""Which names the code of a training step may read, found without running it.

A module or trainer of a framework holds much that its step never reads: the learning rate that it made its optimizer
from, the name of a folder. Tasks that differ in these alone can be trained as one program (technique `fuse`). What
cannot be told counts as read. Knows functions and classes; knows nothing of trainers.
"""

import dis
import inspect
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dovetail.describe.installed import is_installed

# Code that says one of these may read any name.
_ANY_NAME = {"getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "eval", "exec", "locals", "globals"}


def names_read(classes: Sequence[type], *, besides: Iterable[str] = ()) -> frozenset[str] | None:
    """Every name in the methods of these classes, but for the methods named `besides`, and in the functions of the
    user's own, or of the classes' packages, that they call; None where code may read any name.

    >>> class Model:
    ...     def __init__(self):
    ...         self.rate, self.scale = 0.1, 2.0
    ...     def training_step(self, x):
    ...         return x * self.scale
    >>> sorted(names_read([Model], besides=["__init__"]))
    ['scale']
    """
    found: set[str] = set()
    for function in _reachable_functions(classes, frozenset(besides)):
        found |= _names(function.__code__)
    return None if found & _ANY_NAME else frozenset(found)


def classes_above(thing: Any, base: type) -> list[type]:
    """The classes of an object that come before `base`, which is a framework's.

    >>> classes_above(True, int)
    [<class 'bool'>]
    """
    order = type(thing).__mro__
    return [each for each in order[: order.index(base)] if not each.__module__.startswith("torch.")]


def is_own(cls: type) -> bool:
    """Whether a class is the user's own, and not an installed package's.

    >>> is_own(int)
    False
    """
    return any(not is_installed(function.__code__.co_filename) for function in _functions(cls))


def _reachable_functions(classes: Sequence[type], besides: frozenset[str]) -> Iterator[types.FunctionType]:
    packages = {_package(each) for each in classes}
    ahead = [function for each in classes for function in _functions(each) if function.__name__ not in besides]
    seen: set[int] = set()
    while ahead:
        function = ahead.pop()
        if id(function.__code__) in seen:
            continue
        seen.add(id(function.__code__))
        yield function
        values = [function.__globals__.get(name) for name in _names(function.__code__)]
        values += [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
        for value in values:
            inside = _functions(value) if isinstance(value, type) else [value]
            ahead += [
                each
                for each in inside
                if isinstance(each, types.FunctionType)
                and (_package(each) in packages or not is_installed(each.__code__.co_filename))
            ]


def _package(thing: Any) -> str:
    return (thing.__module__ or "").partition(".")[0]


def _functions(cls: type) -> list[types.FunctionType]:
    values = (getattr(value, "fget", None) or getattr(value, "__func__", value) for value in vars(cls).values())
    return [value for value in values if isinstance(value, types.FunctionType)]


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*inner)


def loads_argument(function: Any, place: int) -> bool:
    """Whether a function's code reads its argument at `place`, counted from 0; so it is where that cannot be told.

    >>> loads_argument(lambda batch, number: batch, 1), loads_argument(lambda batch, number: number, 1)
    (False, True)
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_argcount <= place:
        return True
    name = code.co_varnames[place]
    read = {each.argval for each in dis.get_instructions(code) if each.opname.startswith("LOAD")}
    return name in code.co_cellvars or any(name == each or (isinstance(each, tuple) and name in each) for each in read)
