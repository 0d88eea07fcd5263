"""What tells one unimportable program from another: lambdas, closures, partials, a notebook's functions.

A pickle's own bytes change from process to process, so they cannot say who a program is. Its source can, with what it
closes over, its defaults, and all that it reaches from there: the functions, classes and values of its own module, as
they are now, and the source of the user's own modules. Two programs that differ in any of these must never be taken for
one, because one would then be trained in the other's place.
"""

import copyreg
import dis
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.describe import source_digest
from dovetail.describe.installed import is_installed

# What a class has from Python, and not from whoever wrote it.
_GIVEN = {
    "__doc__",
    "__dict__",
    "__weakref__",
    "__module__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",  # written by `copyreg` when an object of the class is first taken apart
}
# How a value is put together again: calling a function with arguments, then setting state, items and entries.
_REDUCE_PROTOCOL = 4

_PLAIN = bool | int | float | complex | str | bytes | None

Seen = dict[int, tuple[int, Any]]


def digest_of(function: Callable[..., Any]) -> str:
    """A short digest of a callable, the same in every process.

    >>> one, two = (functools.partial(int, base=base) for base in (2, 3))
    >>> digest_of(one) == digest_of(functools.partial(int, base=2)), digest_of(one) == digest_of(two)
    (True, False)
    """
    digest = hashlib.sha256()
    for trait in _traits(function, {}):
        digest.update(f"{trait}\n".encode())
    return digest.hexdigest()[:12]


def _traits(value: Any, seen: Seen) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield f"{type(value).__qualname__} {value!r}"
    elif id(value) in seen:
        yield f"again {seen[id(value)][0]}"
    else:
        seen[id(value)] = (len(seen), value)  # held, because another value could come to lie where it lay
        yield type(value).__qualname__
        yield from _inner(value, seen)


def _inner(value: Any, seen: Seen) -> Iterator[str]:
    if isinstance(value, types.FunctionType):
        yield from _own_file(value) or _function(value, seen)
    elif isinstance(value, types.CodeType):
        yield from _instructions(value, seen)
    elif isinstance(value, types.ModuleType):
        yield from (value.__name__, *_module_source(value.__name__))
    elif isinstance(value, types.BuiltinFunctionType):
        yield from (value.__qualname__, *_all_traits((getattr(value, "__self__", None),), seen))
    elif isinstance(value, type):
        yield from (value.__module__, value.__qualname__)
        yield from _own_file(value) or (_class(value, seen) if _is_unimportable(value) else ())
    elif isinstance(value, functools.partial):
        yield from _all_traits((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _all_traits((value.__func__, value.__self__), seen)
    elif isinstance(value, classmethod | staticmethod | functools.cached_property | property):
        parts = (getattr(value, name, None) for name in ("__func__", "func", "fget", "fset", "fdel"))
        yield from _all_traits(parts, seen)
    elif callable(getattr(value, "__wrapped__", None)):  # what `functools.cache` and the like have made of a function
        yield from _all_traits((value.__wrapped__,), seen)
    else:
        yield from _data(value, seen)


def _data(value: Any, seen: Seen) -> Iterator[str]:
    if type(value) in (dict, types.MappingProxyType):
        yield from _all_traits((part for item in value.items() for part in item), seen)
    elif type(value) in (list, tuple):
        yield from _all_traits(value, seen)
    elif type(value) in (set, frozenset):
        # In no order: each as if it were the first.
        yield from sorted("".join(_traits(item, seen if isinstance(item, _PLAIN) else dict(seen))) for item in value)
    elif (content := _array(value)) is not None:
        yield content
    else:
        yield from _all_traits((type(value),), seen)
        yield from _instance(value, seen)


def _instance(value: Any, seen: Seen) -> Iterator[str]:
    """How an object is put together again elsewhere, which is how it travels; of one that cannot be, which is refused
    where programs are carried, how it shows itself, without where it lies."""
    try:
        made = _reduce(value)
    except Exception:  # whatever a user's class raises
        yield re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
        return
    if isinstance(made, str):
        yield made
        return
    build, arguments, state, items, entries = (*made, None, None, None)[:5]
    yield from _all_traits((build, arguments, state), seen)
    yield from _all_traits((*(items or ()), *(part for entry in entries or () for part in entry)), seen)


def _reduce(value: Any) -> Any:
    """A value taken apart as when it is carried: what a library registered for its kind goes before its own method."""
    import cloudpickle

    kind = type(value)
    registered = copyreg.dispatch_table.get(kind) or cloudpickle.Pickler.dispatch_table.get(kind)
    return registered(value) if registered is not None else value.__reduce_ex__(_REDUCE_PROTOCOL)


def _array(value: Any) -> str | None:
    """What a NumPy array or a tensor holds. Neither library need be imported to know theirs."""
    library = type(value).__module__.partition(".")[0]
    if library == "torch" and hasattr(value, "untyped_storage"):
        import torch

        if value.layout is not torch.strided or value.is_meta:
            return None
        try:
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        except RuntimeError:  # a quantised one, for example, has bytes that cannot be looked at so
            return None
        return f"{value.dtype} {tuple(value.shape)} {value.requires_grad} {hashlib.sha256(flat).hexdigest()}"
    if library == "numpy" and hasattr(value, "tobytes") and not getattr(value.dtype, "hasobject", True):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return None


def _function(function: types.FunctionType, seen: Seen) -> Iterator[str]:
    code = function.__code__
    written = _source(function)
    yield from written
    if not written or "<lambda>" in code.co_name:  # a line may hold several lambdas; the source is the whole line's
        yield from _instructions(code, seen)
    yield from _all_traits((function.__defaults__, function.__kwdefaults__), seen)
    yield from _all_traits((cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)), seen)
    if not _is_of_package(function.__module__):  # a decorator's wrapper may be: its version says what it does
        yield from _reached_traits(code, function.__globals__, seen)


def _reached_traits(code: types.CodeType, scope: Mapping[str, Any], seen: Seen) -> Iterator[str]:
    """The global names that code reads, with what they are now, and the modules that it imports when it runs."""
    read, imported = _names(code)
    for name in sorted(read & scope.keys()):
        yield name
        yield from _traits(scope[name], seen)
    for name in sorted(imported):
        yield from _module_source(name)


def _class(cls: type, seen: Seen) -> Iterator[str]:
    """A class that no file holds: all that stands in it, and what its methods reach."""
    yield from _all_traits(cls.__bases__, seen)
    for name, value in vars(cls).items():
        is_given = name in _GIVEN or (name == "__annotations__" and not value)  # made when it is first asked for
        if not is_given and not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
            yield name
            yield from _traits(value, seen)


def _all_traits(values: Iterable[Any], seen: Seen) -> Iterator[str]:
    for value in values:
        yield from _traits(value, seen)


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names that code looks for outside itself, and the modules that it imports, those within it included."""
    read: set[str] = set()
    imported: set[str] = set()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(each.argval)
        elif each.opname == "IMPORT_NAME":
            imported.add(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more_read, more_imported = _names(inner)
            read, imported = read | more_read, imported | more_imported
    return read, imported


def _instructions(code: types.CodeType, seen: Seen) -> Iterator[str]:
    """Code without its source: where it stood in which file does not count."""
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant, seen)
        else:
            yield from _traits(constant, dict(seen))


def _own_file(value: Any) -> list[str]:
    """The source, with all that it reaches, of what stands in a file of the user's own: workers import it from there.
    Of what an installed package has, its name."""
    module = sys.modules.get(value.__module__ or "")
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__" or not file or _look_up(module, value) is not value:
        return []
    if is_installed(str(file)) or _is_dovetail(module.__name__):
        return [f"{value.__module__}.{value.__qualname__}"]
    return _digest(Path(file), value.__qualname__.partition(".")[0])


def _look_up(module: types.ModuleType, value: Any) -> Any:
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _module_source(name: str) -> list[str]:
    """The source of a module of the user's own, with all that it reaches."""
    if _is_dovetail(name):
        return []
    try:
        spec = importlib.util.find_spec(name.partition(".")[0]) and importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    file = spec.origin if spec is not None else None
    if not file or not file.endswith(".py") or is_installed(file):
        return []
    return _digest(Path(file), source_digest.EVERYTHING)


def _digest(file: Path, name: str) -> list[str]:
    try:
        return [source_digest.digest(file, name)]
    except (OSError, SyntaxError, ValueError):
        return []


def _is_of_package(module: str | None) -> bool:
    """Whether a module came with an installed package. A notebook's `__main__` may have been started by one."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return bool(file) and module != "__main__" and is_installed(str(file))


def _is_dovetail(module: str) -> bool:
    return module.partition(".")[0] == "dovetail"  # the tool is not part of the program, wherever it is installed


def _is_unimportable(cls: type) -> bool:
    """Whether no worker could import a class: one of `__main__`, or one that a function has made."""
    module = sys.modules.get(cls.__module__)
    return module is None or module.__name__ == "__main__" or _look_up(module, cls) is not cls


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
