"""Standing between a model's code and torch: calls of modules, operations and custom functions pass through here.

Modules are reached through the slot that `Module.compile` uses, so that nothing global is changed and what runs inside
a module that is not intercepted runs at full speed. Used by `watch`, which records a run, and `run`, which follows one.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from dovetail.train.postponed_compiler import COMPILED_CALL

# torch's modules that are made of others: these are seen. Its other modules are one operation each.
_COMPOSED = ("torch.nn.modules.container", "torch.nn.modules.transformer")


class Interceptor(TorchFunctionMode, abc.ABC):
    """Within `intercepting`, every operation and every call of the given modules goes to these two methods."""

    def __init__(self) -> None:
        super().__init__()
        self._is_native = False
        self._own: dict[nn.Module, Callable[..., Any]] = {}
        self._opaque: set[nn.Module] = set()

    @abc.abstractmethod
    def on_call(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Called instead of a module that is called."""

    @abc.abstractmethod
    def on_operation(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Called instead of a function of torch's; what the function does inside is not seen."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass a function of torch's on to `on_operation`. Called by torch."""
        if self._is_native:  # a mode of the model's own lies above this one
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.__iter__:  # gives an iterator, in which no tensor is seen
            return iter(self.on_operation(torch.Tensor.unbind, args, {}))
        return self.on_operation(func, args, kwargs or {})

    def natively(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module as if nothing were intercepted."""
        return self.execute(self._own[module], args, kwargs)

    def execute(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function of torch's as if nothing were intercepted."""
        before, self._is_native = self._is_native, True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_native = before

    def call_within(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module, and see what is called inside."""
        with self:
            return self._own[module](*args, **kwargs)

    @contextlib.contextmanager
    def intercepting(self, modules: dict[str, nn.Module]) -> Iterator[None]:
        """Within, calls of these modules and all operations outside of modules run natively come here."""
        before = {module: vars(module).get(COMPILED_CALL) for module in modules.values()}
        self._opaque = {module for module in modules.values() if is_opaque(module)}
        self._own = {module: slot or module._call_impl for module, slot in before.items()}
        for path, module in modules.items():
            vars(module)[COMPILED_CALL] = self._wrap_call(path, module)
        try:
            with self, _custom_functions(self):
                yield
        finally:
            for module, slot in before.items():
                if slot is None:
                    del vars(module)[COMPILED_CALL]
                else:
                    vars(module)[COMPILED_CALL] = slot

    def _wrap_call(self, path: str, module: nn.Module) -> Callable[..., Any]:
        own = self._own[module]

        def called(*args: Any, **kwargs: Any) -> Any:
            if self._is_native:
                return own(*args, **kwargs)
            with _pop_mode_temporarily():
                return self.on_call(path, module, args, kwargs)

        return called


@contextlib.contextmanager
def _custom_functions(interceptor: Interceptor) -> Iterator[None]:
    # `apply` of a custom autograd function is no function of torch's that modes see, and what is inside it must not be
    # cut: its backward is one.
    own: Any = vars(torch.autograd.Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bound = own.__get__(None, cls)
        if interceptor._is_native:
            return bound(*args, **kwargs)
        with _pop_mode_temporarily():
            return interceptor.on_operation(_Bound(bound, cls), args, kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = own  # type: ignore[method-assign]


class _Bound:
    """`apply` of a custom function, equal for equal functions."""

    def __init__(self, bound: Callable[..., Any], owner: type) -> None:
        self._bound, self._owner = bound, owner
        self.__name__ = f"{owner.__name__}.apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._bound(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bound) and other._owner is self._owner

    def __hash__(self) -> int:
        return hash(self._owner)


def is_opaque(module: nn.Module) -> bool:
    """Whether a module is one operation to us: torch's own, but for those made of others, and compiled ones.

    >>> is_opaque(nn.Linear(1, 1)), is_opaque(nn.Sequential())
    (True, False)
    """
    if isinstance(module, torch.jit.ScriptModule) or vars(module).get(COMPILED_CALL) is not None:
        return True
    place = type(module).__module__
    return place.startswith("torch.") and not place.startswith(_COMPOSED)


def visible_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by their path, outer ones first, each once; what is inside opaque ones is not seen.

    >>> list(visible_modules(nn.Sequential(nn.MultiheadAttention(2, 1), nn.ReLU())))
    ['', '0', '1']
    """
    found: dict[nn.Module, str] = {}
    stack = [("", model)]
    while stack:
        path, module = stack.pop()
        if module in found:
            continue
        found[module] = path
        if not is_opaque(module):
            inside = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
            stack.extend(reversed(inside))
    return {path: module for module, path in found.items()}
