"""The code that a training runs, as text that is the same in every process.

Follows functions and classes of the user's own into what they call; code that was installed counts by its file and its
package's version. Left out of what functions close over: floats and anything named like a seed,
so that learning rates and seeds do not part one program's tasks.
"""

import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.describe import installed

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


class Sources:
    """Gathers the source of functions and classes and of what they reach.

    >>> def twice(x): return 2 * x
    >>> def loss(x): return twice(x)
    >>> sources = Sources()
    >>> sources.add(loss)
    >>> sorted(name for name, *_ in sources.texts())
    ['loss', 'twice']
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._seen_ids: set[int] = set()  # never written anywhere: ids differ from process to process
        self._texts: list[list[Any]] = []

    def texts(self) -> list[list[Any]]:
        """Name, source and outer values of all that was met, in an order of their own."""
        return sorted(self._texts, key=repr)

    def add(self, thing: Any) -> None:
        """Take in a function, class, bound method, partial or callable object."""
        if isinstance(thing, functools.partial):
            self._texts.append(["partial", self.value([thing.args, thing.keywords])])
            self.add(thing.func)
        elif inspect.ismethod(thing):
            self.add(thing.__func__)
            self.add(thing.__self__ if isinstance(thing.__self__, type) else type(thing.__self__))
        elif isinstance(thing, type):
            self._add_class(thing)
        elif inspect.isfunction(inspect.unwrap(thing)):
            self._add_function(inspect.unwrap(thing))
        else:
            self._texts.append(["object", self.attributes(thing)])
            self.add(type(thing))

    def attributes(self, thing: Any) -> list[Any]:
        """The public attributes of an object that may decide how much work it does: numbers, words, functions."""
        kinds = bool | int | str | types.FunctionType | type
        found = {name: value for name, value in getattr(thing, "__dict__", {}).items() if isinstance(value, kinds)}
        return [[name, self.value(found[name], name=name)] for name in sorted(found) if not name.startswith("_")]

    def value(self, value: Any, *, name: str = "", depth: int = 0) -> Any:
        """What a value tells of the work to do: its text, shape or length, but no rates and no seeds."""
        if "seed" in name.lower():
            return None
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, torch.Tensor | numpy.ndarray):
            return [str(value.dtype), list(value.shape)]
        if isinstance(value, nn.Module):
            self.add(type(value))
            return [type(value).__qualname__, [list(parameter.shape) for parameter in value.parameters()]]
        if isinstance(value, types.FunctionType | types.MethodType | type | functools.partial):
            self.add(value)
            return getattr(value, "__qualname__", "partial")
        if isinstance(value, list | tuple) and depth < 3:
            return [len(value), [self.value(item, depth=depth + 1) for item in value[:8]]]
        if isinstance(value, dict) and depth < 3:
            return [[str(key), self.value(item, name=str(key), depth=depth + 1)] for key, item in value.items()]
        return [type(value).__qualname__, _length(value)]

    def _is_new(self, thing: Any) -> bool:
        if id(thing) in self._seen_ids:
            return False
        self._seen.append(thing)  # kept alive, so that its id stays its own
        self._seen_ids.add(id(thing))
        return True

    def _add_function(self, function: types.FunctionType) -> None:
        if not self._is_new(function) or _is_torch(function):
            return
        outer = [] if is_installed(function) else list(self._outer(function))
        self._texts.append([function.__qualname__, _source(function), outer])

    def _add_class(self, cls: type) -> None:
        for base in cls.__mro__:
            # Without functions and installed: object, Generic and the like.
            if _is_torch(base) or (not _functions(base) and is_installed(base)) or not self._is_new(base):
                continue
            self._texts.append([base.__qualname__, _source(base), []])
            for function in [] if is_installed(base) else _functions(base):
                if self._is_new(function):
                    self._texts.append([function.__qualname__, "", list(self._outer(function))])

    def _outer(self, function: types.FunctionType) -> Iterator[list[Any]]:
        """Names that a function takes from around it, with their values."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if cell != types.CellType():  # not assigned yet
                yield [name, self.value(cell.cell_contents, name=name)]
        yield ["defaults", self.value(list(function.__defaults__ or ()))]
        yield ["keyword defaults", self.value(dict(function.__kwdefaults__ or {}))]
        names = _names(function.__code__)
        for name in names:
            if name in function.__globals__:
                yield from self._global(name, function.__globals__[name], names)

    def _global(self, name: str, value: Any, names: list[str]) -> Iterator[list[Any]]:
        if isinstance(value, types.ModuleType):
            if _file(value) and not installed.is_installed(_file(value)):
                inside = [(each, vars(value)[each]) for each in names if each in vars(value)]
                for each, found in inside:
                    if not isinstance(found, types.ModuleType):
                        yield from self._global(each, found, names)
        elif value is None or isinstance(value, bool | int | str | types.FunctionType | type):
            # Containers and other objects are left out: a module's caches grow while it is in use.
            yield [name, self.value(value, name=name)]


def without_addresses(text: str) -> str:
    """The text of a value, the same in every process.

    >>> without_addresses("<function relu at 0x7f12ab>")
    '<function relu at 0x>'
    """
    return _ADDRESS.sub("0x", text)


def is_installed(thing: Any) -> bool:
    """Whether a function or class comes with Python or an installed package, so that a version tells of it.

    >>> import json
    >>> is_installed(json.dumps)
    True
    """
    if not isinstance(thing, type):
        return installed.is_installed(thing.__code__.co_filename)
    for function in _functions(thing):
        return is_installed(function)
    return thing.__module__ in sys.builtin_module_names or installed.is_installed(
        _file(sys.modules.get(thing.__module__))
    )


def package_of(thing: Any) -> str:
    """The top package in which a class or function is defined.

    >>> package_of(nn.Linear)
    'torch'
    """
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def _file(module: types.ModuleType | None) -> str:
    return getattr(module, "__file__", None) or ""


def _is_torch(thing: Any) -> bool:
    return package_of(thing) == "torch"


def _functions(cls: type) -> list[types.FunctionType]:
    found = []
    for value in vars(cls).values():
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
        if isinstance(value, types.FunctionType):
            found.append(value)
    return found


def _source(thing: Any) -> str:
    # To find a class of transformers in its file takes 0.1 s.
    if isinstance(thing, type):
        return _installed_file(_file(sys.modules.get(thing.__module__))) or _read_source(thing)
    code = thing.__code__
    if not (told := _installed_file(code.co_filename)):
        return _read_source(thing)
    # Functions of one name, and on one line lambdas, may lie in the same file.
    return repr([told, code.co_firstlineno, _bytecode(code) if thing.__name__ == "<lambda>" else ""])


@functools.cache
def _installed_file(path: str) -> str:
    """What tells an installed file from an edited one; empty where there is none, or it is the user's own."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if installed.is_installed(path) else ""
    except OSError:
        return ""


def _read_source(thing: Any) -> str:
    # A lambda's source is the whole statement around it, which may hold a learning rate.
    if getattr(thing, "__name__", "") != "<lambda>":
        try:
            return inspect.getsource(thing)
        except (OSError, TypeError):  # typed into a prompt, executed from a string, or unpickled
            pass
    functions = _functions(thing) if isinstance(thing, type) else [thing]
    attributes = [(name, value) for name, value in vars(thing).items() if isinstance(value, bool | int | str)]
    return repr([attributes, [(function.__qualname__, _bytecode(function.__code__)) for function in functions]])


def _bytecode(code: types.CodeType) -> list[str]:
    constants = [_constant(value) for value in code.co_consts]
    return [code.co_code.hex(), repr(constants), repr(code.co_names), repr(code.co_varnames), repr(code.co_freevars)]


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return repr(_bytecode(value))
    if isinstance(value, frozenset):  # its order differs from process to process
        return repr(sorted(map(repr, value)))
    return repr(value)


def _names(code: types.CodeType) -> list[str]:
    """Every global and attribute name in a function and the functions inside it, sorted."""
    inner = [name for value in code.co_consts if isinstance(value, types.CodeType) for name in _names(value)]
    return sorted({*code.co_names, *inner})


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError, AttributeError):
        return None
