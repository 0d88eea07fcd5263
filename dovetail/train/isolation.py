"""What tasks leave behind in a process, undone, so that none finds what another one did: variables of the user's
modules, and settings of the whole process: torch's, the environment, the working folder.

What importing a program's file sets (a default dtype, TF32, an environment variable, the working folder) is the
program's own word. It holds for each of its tasks, also for those that find the file imported already; where two files
of a workload import a third one that sets something, for the tasks of the first.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dovetail.describe.module_variables import ModuleVariables

_Settings = dict[str, Any]
_ENVIRONMENT, _FOLDER = "environment variable ", "working folder"
_DETERMINISTIC = "torch's deterministic algorithms"


def _flushes_denormals() -> bool:
    return not bool(torch.full((1,), 1e-40, dtype=torch.float32, device="cpu") * 1.0 > 0)


def _accessors(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


# What can be set for all of torch, each with how it is read and set.
_TORCH: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, torch.set_default_device),
    "whether torch computes gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's precision of float32 products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    _DETERMINISTIC: (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "whether torch flushes denormal numbers": (_flushes_denormals, torch.set_flush_denormal),
    "torch.backends.cudnn.benchmark": _accessors(torch.backends.cudnn, "benchmark"),
    "torch.backends.cudnn.deterministic": _accessors(torch.backends.cudnn, "deterministic"),
}


def _torch_settings() -> _Settings:
    return {name: read() for name, (read, _) in _TORCH.items()}


# Before any program of the user's was imported.
_INITIAL = _torch_settings()


class Isolation:
    """What a worker undoes between one build and the next. It has one for each run of which it carries out orders. With
    `deterministic`, torch computes the same bits each time unless a program says otherwise.

    >>> isolation = Isolation()
    >>> with isolation.loading("double.py"):
    ...     torch.set_default_dtype(torch.float64)   # as where double.py says so when it is imported
    >>> with isolation.loading("other.py"):
    ...     pass
    >>> torch.get_default_dtype()
    torch.float32
    >>> with isolation.loading("double.py"):         # imported already: it says nothing any more
    ...     pass
    >>> torch.get_default_dtype()
    torch.float64
    >>> isolation.reset()
    """

    def __init__(self, *, deterministic: bool = False) -> None:
        self._modules = ModuleVariables()
        self._imported: dict[str, _Settings] = {}
        # Where an operation has no deterministic form torch warns, and it is computed all the same.
        chosen = {_DETERMINISTIC: (True, True)} if deterministic else {}
        self._initial = self._loaded = _settings() | _INITIAL | chosen

    def reset(self) -> None:
        """Put all settings back as they were before any program was imported."""
        self._reset()

    def _reset(self) -> _Settings:
        """Put them back; gives what is set then."""
        return _applied(_differences(self._initial, found := _settings()), found)

    @contextlib.contextmanager
    def loading(self, place: str) -> Iterator[None]:
        """Load a program of this file or module within, from a process as if no other task had been there; afterwards
        it is as importing that file leaves it."""
        before = self._reset()
        with self._modules.loading():
            yield
        imported, found = self._imported.setdefault(place, {}), _settings()
        imported |= _differences(found, before)
        self._loaded = _applied(imported, found)

    def put_back(self) -> list[str]:
        """Undo what was done since a program was loaded; gives the names of variables and of torch's settings that had
        changed. Environment and folder are put back without a word: few programs need theirs once they are built."""
        return [name for name in self.undo() if name != _FOLDER and not name.startswith(_ENVIRONMENT)]

    def undo(self) -> list[str]:
        """Undo what was done since a program was loaded; gives the names of all that had changed."""
        changed = _differences(self._loaded, _settings())
        _apply(changed)
        return [*self._modules.put_back(), *changed]


def _settings() -> _Settings:
    variables = {_ENVIRONMENT + name: value for name, value in os.environ.items()}
    return {**_torch_settings(), **variables, _FOLDER: os.getcwd()}


def _differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> _Settings:
    """What is set now and was not, or otherwise, before; None for what is not set any more."""
    return {name: now.get(name) for name in {**now, **before} if now.get(name) != before.get(name)}


def _applied(settings: _Settings, found: _Settings) -> _Settings:
    """Apply these settings where others are `found`; gives what is set then. To read all takes 0.1 ms, a few times a
    build, and mostly there is nothing to apply."""
    if all(name in found and found[name] == value for name, value in settings.items()):
        return found
    _apply(settings)
    return _settings()


def _apply(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name in _TORCH:
            _TORCH[name][1](value)
        elif name == _FOLDER:
            os.chdir(value)
        elif value is None:
            os.environ.pop(name.removeprefix(_ENVIRONMENT), None)
        else:
            os.environ[name.removeprefix(_ENVIRONMENT)] = value
