"""What tells one unimportable program from another: lambdas, closures, partials, a notebook's functions.

A pickle's own bytes change from process to process, so they cannot say who a program is. Its source can, with
what it closes over, its defaults, and the definitions of its own module that it uses: two programs that differ in
any of these must never be taken for one, because one would then be trained in the other's place.
"""

import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dovetail.describe import source_digest


def digest_of(function: Callable[..., Any]) -> str:
    """A short digest of a callable, the same in every process.

    >>> one, two = (functools.partial(int, base=base) for base in (2, 3))
    >>> digest_of(one) == digest_of(functools.partial(int, base=2)), digest_of(one) == digest_of(two)
    (True, False)
    """
    return hashlib.sha256("\n".join(_traits(function, set())).encode()).hexdigest()[:12]


def _traits(value: Any, seen: set[int]) -> Iterator[str]:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value)
    elif id(value) in seen:
        yield "again"
    else:
        seen.add(id(value))
        yield type(value).__qualname__
        yield from _inner(value, seen)


def _inner(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, types.FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        yield value.__name__
    elif isinstance(value, type):
        yield from (value.__module__, value.__qualname__)
        yield from _source(value) or _members(value, seen)
    elif isinstance(value, functools.partial):
        yield from _all((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _all((value.__func__, value.__self__), seen)
    elif isinstance(value, Mapping):
        yield from _all((part for item in value.items() for part in item), seen)
    elif isinstance(value, list | tuple):
        yield from _all(value, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted("".join(_traits(item, seen)) for item in value)
    else:
        yield from _all((type(value),), seen)
        yield _bytes(value)


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    code = function.__code__
    written = _source(function)
    yield from written
    if not written or "<lambda>" in code.co_name:  # a line may hold several lambdas; the source is the whole line's
        yield repr((code.co_code, [c for c in code.co_consts if not isinstance(c, types.CodeType)], code.co_names))
    yield from _all((function.__defaults__, function.__kwdefaults__), seen)
    yield from _all((cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)), seen)
    for name in sorted(_names(code)):
        used = function.__globals__.get(name)
        if getattr(used, "__module__", None) == function.__module__ or isinstance(used, bool | int | float | str):
            yield from _traits(used, seen)


def _members(cls: type, seen: set[int]) -> Iterator[str]:
    for name, value in sorted(vars(cls).items()):
        if isinstance(value, types.FunctionType | bool | int | float | str) and name != "__doc__":
            yield name
            yield from _traits(value, seen)


def _all(values: Any, seen: set[int]) -> Iterator[str]:
    for value in values:
        yield from _traits(value, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_names(each) for each in inner))


def _source(value: Any) -> list[str]:
    try:
        return [source_digest.digest_text(inspect.cleandoc("\n" + inspect.getsource(value)))]
    except (OSError, TypeError, SyntaxError):
        return []


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is assigned later
        return False


def _bytes(value: Any) -> str:
    import cloudpickle

    try:
        return hashlib.sha256(cloudpickle.dumps(value)).hexdigest()
    except Exception:  # whatever a user's class raises: `carry` refuses it with a message of its own
        return ""
