"""Triton where it is installed, for modules with kernels of their own: `tl` is what their kernels are written in."""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

triton: Any = None
tl: Any = None
with contextlib.suppress(ModuleNotFoundError):
    triton, tl = (importlib.import_module(name) for name in ("triton", "triton.language"))


def jit(kernel: Callable[..., Any]) -> Any:
    """The kernel, compiled when it is first called; without Triton as it is written, which nobody calls.

    >>> jit(len) is len or is_there()
    True
    """
    return kernel if triton is None else triton.jit(kernel)


def is_there() -> bool:
    """Whether Triton is installed.

    >>> is_there() in (True, False)
    True
    """
    return triton is not None
