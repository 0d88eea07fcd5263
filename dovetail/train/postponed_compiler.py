"""Torch's compiler, imported by those who compile.

Torch marks functions for its compiler, most of all those of optimizers: here a graph must break, this is not to be
compiled. To do so it imports the whole compiler, which takes two seconds of each worker, whether or not anything is
compiled. While nobody has imported it nothing can be, and the marks say nothing: until then they are left out. What is
not known here imports the compiler as it always did.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _use_grad_for_differentiable

COMPILER = "torch._dynamo"
COMPILED_CALL = "_compiled_call_impl"
"""What torch's modules call instead of `forward` where it is set, as `Module.compile` does."""
_MARKED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_MARKED_STEP = _use_grad_for_differentiable(lambda: None).__code__


def postpone_compiler() -> None:
    """Have torch's own optimizers do without the compiler until something else imports it. To ask twice is harmless.

    >>> postpone_compiler()
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weight.grad = torch.ones(1)
    >>> torch.optim.SGD([weight], lr=0.5).step()
    >>> weight.item()
    0.5
    """
    for name in _MARKED:
        if vars(Optimizer)[name].__module__ != __name__:
            leave_out_mark(Optimizer, name)
    for owner in vars(torch.optim).values():
        step = vars(owner).get("step") if isinstance(owner, type) else None
        if getattr(step, "__code__", None) is _MARKED_STEP:
            leave_out_mark(owner, "step", _make_step(step))


def leave_out_mark(owner: type, name: str, plain: Callable[..., Any] | None = None) -> None:
    """Have a method that torch has marked be the plain one until the compiler is imported."""
    marked: Any = vars(owner)[name]
    unmarked = plain or marked.__wrapped__

    @functools.wraps(marked)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (marked if COMPILER in sys.modules else unmarked)(*args, **kwargs)

    call.__module__ = __name__
    setattr(owner, name, call)


def _make_step(marked: Any) -> Callable[..., Any]:
    """What torch's `_use_grad_for_differentiable` does, less its marks."""

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return marked.__wrapped__(self, *args, **kwargs)

    return step


def is_compiled(thing: Any) -> bool:
    """Whether the program has a module or function compiled, by `torch.compile(thing)` or `module.compile()`.

    >>> is_compiled(torch.nn.Linear(1, 1))
    False
    """
    names = getattr(thing, "__dict__", {})
    return names.get(COMPILED_CALL) is not None or hasattr(thing, "_orig_mod") or "_torchdynamo_orig_callable" in names


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Within, what the program has compiled runs as written."""
    return torch.compiler.set_stance("force_eager") if COMPILER in sys.modules else contextlib.nullcontext()


def run_as_written(model: nn.Module) -> Callable[[], None]:
    """Have modules that the program compiled in place run as written; gives what undoes it."""
    slots = [(vars(module), vars(module)[COMPILED_CALL]) for module in model.modules() if COMPILED_CALL in vars(module)]
    for slot, _ in slots:
        del slot[COMPILED_CALL]

    def undo() -> None:
        for slot, compiled in slots:
            slot[COMPILED_CALL] = compiled

    return undo
