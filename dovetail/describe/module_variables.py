"""Variables of the user's modules, put back as importing the modules left them, so that no task finds what another one
did to them in the same worker.

Put back are names that were assigned anew, and the contents of lists, dicts, sets and deques, of objects and classes of
the user's own, of default arguments, and of random generators. Not put back are tensors and arrays that were written in
place, containers of more than 10,000 items, variables with more than 100,000 things in them, and what
`functools.cache` holds: that is how to keep something for all tasks of a worker. Nothing is imported anew, since an
import may take longer than a task.

What imports do to modules that were imported before, as where a decorator fills a registry, is part of importing and
not of a task: a module is as its import left it once the outermost import has ended.
"""

import collections
import contextlib
import importlib.abc
import importlib.machinery
import os
import random
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.describe.installed import is_dovetail, is_installed

_MOST_ITEMS = 10_000
_MOST_OF_VARIABLE = 100_000
_DEPTH = 4
_DICTS = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)
_CONTAINERS = (*_DICTS, list, collections.deque, set)
_PLAIN = bool | int | float | complex | str | bytes | None
_ABSENT = object()


class ModuleVariables:
    """The variables of the user's modules, each as its import left it. A worker has one, from its beginning to its end.

    >>> modules = ModuleVariables()
    >>> module = types.ModuleType("mine")
    >>> module.__file__, module.COUNT, module.SEEN = "/home/me/mine.py", 0, []
    >>> modules.add(module)
    >>> module.COUNT += 1
    >>> module.SEEN.append(1)
    >>> modules.put_back(), module.COUNT, module.SEEN
    (['mine.COUNT', 'mine.SEEN'], 0, [])
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # by identity, and held, so that no other thing can have the same
        self._modules: list[tuple[types.ModuleType, dict[str, Any]]] = []
        self._found: list[tuple[str, Any, Any]] = []
        self._imports: list[object] = []  # those under way, of all threads
        self._before: tuple[list[dict[str, Any]], list[Any]] = [], []
        self._left = 0  # how many more things may be looked at in the variable at hand

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Load a program within: before, all variables are put back; from then on, those of modules that are imported,
        within or later, are known too."""
        self.put_back()
        _Watching.install(self)
        with self.importing():
            yield

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Import within. At the end of the outermost import, variables of new modules become known as they are then,
        and so does whatever it has changed in others."""
        this = object()
        if not self._imports:
            spaces = [dict(vars(module)) for module, _ in self._modules]
            self._before = spaces, [_copy_value(thing) for _, thing, _ in self._found]
        self._imports.append(this)
        try:
            yield
        finally:
            self._imports.remove(this)
            if not self._imports:
                self._adopt(*self._before)
                for module in list(sys.modules.values()):
                    if id(module) not in self._seen:  # of thousands, at each build, most are known
                        self.add(module)

    def add(self, module: Any) -> None:
        """Know a module's variables as they are now, where it is the user's own and not known yet."""
        if id(module) in self._seen or not isinstance(module, types.ModuleType):
            return
        self._seen[id(module)] = module
        if _is_own_file(module):
            names = dict(vars(module))
            self._modules.append((module, names))
            self._found += self._inside(module, names)

    def put_back(self) -> list[str]:
        """Put all of them back; gives the names of those that had changed, imported modules aside."""
        changed = []
        for module, before in self._modules:
            for name in _differing_names(vars(module), before, skip_dunder=True):
                if not _is_imported(vars(module).get(name)):  # imported by a task, and so it stays
                    changed.append(f"{module.__name__}.{name}")
                    _assign(vars(module), name, before.get(name, _ABSENT))
        for name, thing, saved in self._found:
            if _differs(thing, saved):
                changed.append(name)
                _restore(thing, saved)
        return list(dict.fromkeys(changed))

    def _inside(self, module: types.ModuleType, names: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        for name, value in names.items():
            if not name.startswith("__"):
                yield from self._look_all([value], f"{module.__name__}.{name}", 0)

    def _adopt(self, spaces: list[dict[str, Any]], contents: list[Any]) -> None:
        """Take for known what differs now from what there was when an import began."""
        for (module, known), before in zip(self._modules, spaces, strict=False):
            for name in _differing_names(vars(module), before, skip_dunder=True):
                _assign(known, name, value := vars(module).get(name, _ABSENT))
                self._found += self._look_all([value], f"{module.__name__}.{name}", 0)
        for number, began in enumerate(contents):
            name, thing, known = self._found[number]
            if began is not None and _copy_value(thing) is not None and _differs(thing, began):
                self._found[number] = name, thing, _merge(thing, began, known)
                self._found += self._look_all(_contents(thing), name, 1)

    def _look_all(self, values: Iterable[Any], name: str, depth: int) -> list[tuple[str, Any, Any]]:
        self._left = _MOST_OF_VARIABLE
        found = [each for value in values for each in self._look(value, name, depth)]
        return found if self._left >= 0 else []

    def _look(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, Any, Any]]:
        """Whatever can change inside a value, under the name of the variable that reaches it, with what is in it."""
        self._left -= 1
        if isinstance(value, _PLAIN | types.ModuleType) or id(value) in self._seen or depth > _DEPTH or self._left < 0:
            return
        self._seen[id(value)] = value
        saved = _copy_value(value)
        if saved is not None:
            yield name, value, saved
        for each in _contents(value):
            yield from self._look(each, name, depth + 1)


def _is_own_file(module: types.ModuleType) -> bool:
    file, name = vars(module).get("__file__"), vars(module).get("__name__")
    if not isinstance(file, str) or not os.path.isabs(file) or name == "__main__":  # torch.ops says "_ops.py"
        return False
    return not is_installed(file) and not is_dovetail(file)


def _is_own(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and _is_own_file(module)


def _is_imported(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value


def _copy_value(value: Any) -> Any:
    """What is in a value now; None for what is not looked into."""
    if type(value) in _CONTAINERS:
        return value.copy() if len(value) <= _MOST_ITEMS else None
    if isinstance(value, type):
        return dict(vars(value)) if _is_own(value) else None
    return _generator_state(value)


def _contents(value: Any) -> Iterable[Any]:
    if type(value) in _CONTAINERS:
        if len(value) > _MOST_ITEMS:
            return ()
        return list(value.values()) if isinstance(value, dict) else list(value)
    if isinstance(value, types.FunctionType):
        own = not is_installed(value.__code__.co_filename)
        return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), vars(value)] if own else ()
    if isinstance(value, type):
        return [each for key, each in vars(value).items() if not key.startswith("__")] if _is_own(value) else ()
    return [vars(value)] if _is_own(type(value)) and hasattr(value, "__dict__") else ()


def _differs(value: Any, saved: Any) -> bool:
    if isinstance(value, type):
        return bool(_differing_names(vars(value), saved, skip_dunder=True))
    if isinstance(value, dict):
        return list(value) != list(saved) or bool(_differing_names(value, saved))
    if isinstance(value, list | collections.deque):
        return len(value) != len(saved) or not all(map(_is_same, value, saved))
    return bool(value != saved) if isinstance(value, set) else _bytes_of(_generator_state(value)) != _bytes_of(saved)


def _restore(value: Any, saved: Any) -> None:
    if isinstance(value, type):
        for name in _differing_names(vars(value), saved, skip_dunder=True):
            setattr(value, name, saved[name]) if name in saved else delattr(value, name)
    elif isinstance(value, dict):
        value.clear()
        dict.update(value, saved)  # a Counter's own would add
    elif isinstance(value, list | collections.deque | set):
        value.clear()
        value.update(saved) if isinstance(value, set) else value.extend(saved)
    elif isinstance(value, random.Random):
        value.setstate(saved)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = saved
    else:
        value.set_state(saved)


def _merge(value: Any, began: Any, known: Any) -> Any:
    """What was known of a value, with what has changed in it since an import began."""
    if isinstance(value, type | dict):
        now, merged = (vars(value) if isinstance(value, type) else value), known.copy()
        for name in _differing_names(now, began, skip_dunder=isinstance(value, type)):
            _assign(merged, name, now.get(name, _ABSENT))
        return merged
    if isinstance(value, set):
        return (known | (value - began)) - (began - value)
    if isinstance(value, list | collections.deque):
        is_longer = len(value) >= len(began) and all(map(_is_same, value, began))
        return [*known, *list(value)[len(began) :]] if is_longer else list(value)
    return _generator_state(value)


def _generator_state(value: Any) -> Any:
    """The state of a random generator of Python's, NumPy's or torch's; None for anything else."""
    if isinstance(value, random.Random):
        return value.getstate()
    package = type(value).__module__.partition(".")[0]
    if package == "numpy" and hasattr(value, "bit_generator"):
        return value.bit_generator.state
    return value.get_state() if package in ("numpy", "torch") and hasattr(value, "set_state") else None


def _bytes_of(state: Any) -> bytes:
    return bytes(state.numpy().tobytes()) if hasattr(state, "numpy") else repr(state).encode()


def _differing_names(now: Mapping[str, Any], before: Mapping[str, Any], *, skip_dunder: bool = False) -> list[str]:
    names = dict.fromkeys([*before, *now])
    return [
        name
        for name in names
        if not (skip_dunder and name.startswith("__"))
        and not _is_same(now.get(name, _ABSENT), before.get(name, _ABSENT))
    ]


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


def _assign(space: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        space.pop(name, None)
    else:
        space[name] = value


class _Watching(importlib.abc.MetaPathFinder):
    """Lets the variables of a module of the user's be known as soon as it is imported, also in the midst of a task."""

    def __init__(self, modules: ModuleVariables) -> None:
        self._modules = modules

    @classmethod
    def install(cls, modules: ModuleVariables) -> None:
        """Once in a process, just before the finder whose modules are watched: what others find stays theirs."""
        here = [finder for finder in sys.meta_path if isinstance(finder, cls)]
        if here and here[0]._modules is modules:
            return
        for finder in here:
            sys.meta_path.remove(finder)
        place = sys.meta_path.index(importlib.machinery.PathFinder)
        sys.meta_path.insert(place, cls(modules))

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What Python finds by itself, with a word to us after it is executed where it is the user's own."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return spec
        if spec.origin is not None and not is_installed(spec.origin) and not is_dovetail(spec.origin):
            execute = spec.loader.exec_module

            def execute_watched(module: types.ModuleType) -> None:
                with self._modules.importing():
                    execute(module)

            spec.loader.exec_module = execute_watched  # type: ignore[method-assign]
        return spec
