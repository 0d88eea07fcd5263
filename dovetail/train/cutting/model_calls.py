"""What a program's loss calls its model with, and the loss for an output computed elsewhere.

A loss calls its model once. It is run with a stand-in for the model, which reads like the model (`config`, `training`,
`isinstance`) and does not compute: it stops at the call, or returns an output that was computed elsewhere. So neither
the first stage nor the last needs the loss traced, and the loss needs no model.
"""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dovetail.train.cutting.generator_states import generator_states, host_states
from dovetail.train.postponed_compiler import COMPILED_CALL
from dovetail.vocabulary import TechniqueRefused

Loss = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """The arguments with which the loss calls the model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def capture_call(loss: Loss, model: nn.Module, batch: Any) -> ModelCall:
    """The call that `loss(model, batch)` makes of its model; nothing of the model is computed.

    Refuses a loss that makes no call, or calls a part of the model, or reads parameters before the call.

    >>> capture_call(lambda model, batch: model(batch, scale=2).mean(), nn.Identity(), 1)
    ModelCall(args=(1,), kwargs={'scale': 2})
    """
    found: list[ModelCall] = []

    def answer(call: ModelCall) -> Any:
        found.append(call)
        raise _Reached

    with _stand_in(model, loss, answer, _CAPTURED) as stand_in, contextlib.suppress(_Reached):
        loss(stand_in, batch)
    if not found:
        raise TechniqueRefused(
            f"the loss must call its model once for the model to be cut; {_name(loss)} does not call it. "
            f"Use a technique that keeps the model whole."
        )
    return found[0]


def loss_given(loss: Loss, model: nn.Module, batch: Any, output: Any) -> Any:
    """What `loss(model, batch)` returns where the model gives `output`.

    Refuses a loss that calls the model more than once, or reads parameters: these are not all here; and one that draws
    random numbers after the call: torch's generators stand where the model's last draw left them, which was elsewhere.
    Before the call it may draw; begin where the call that was captured began.

    >>> loss_given(lambda model, batch: model(batch) + 1, nn.Identity(), None, torch.tensor(2.0))
    tensor(3.)
    """
    calls, called_at = 0, torch.empty(0)

    def answer(call: ModelCall) -> Any:
        nonlocal calls, called_at
        calls, called_at = calls + 1, generator_states()
        if calls > 1:
            raise TechniqueRefused(
                f"the loss must call its model once for the model to be cut; {_name(loss)} calls it again. "
                f"Put both calls into the model's forward, or use a technique that keeps the model whole."
            )
        return output

    with _stand_in(model, loss, answer, _GIVEN) as stand_in:
        found = loss(stand_in, batch)
    if not calls:
        raise TechniqueRefused(f"the loss must call its model once for the model to be cut; {_name(loss)} does not.")
    if not torch.equal(called_at, generator_states()):
        raise TechniqueRefused(
            f"the loss must draw random numbers before it calls its model for the model to be cut; {_name(loss)} draws "
            f"after the call. Draw before it, or in a module of the model."
        )
    return found


class _Reached(BaseException):
    """The call that was waited for. No Exception, so that no program's `except Exception` takes it."""


@contextlib.contextmanager
def _stand_in(
    model: nn.Module, loss: Loss, answer: Callable[[ModelCall], Any], checked: "_Checked"
) -> Iterator[nn.Module]:
    """A module that reads like `model`, of a class derived from its own.

    It has the model's attributes. The first time with a loss, computing with parameters and calling parts of the
    model is watched for, which takes a millisecond or two.
    """
    own: Any = type(model)
    stand_in: nn.Module = object.__new__(_make_stand_in(own))
    vars(stand_in).update(vars(model))
    vars(stand_in)[_ANSWER] = answer
    if loss in checked.setdefault(model, _losses()):
        yield stand_in
        return
    before = host_states()
    with _refusing_parts(model), _Hidden({id(parameter) for parameter in model.parameters()}):
        yield stand_in
    if host_states() != before:
        raise TechniqueRefused(
            f"the loss must draw random numbers from torch's generators for the model to be cut, which are keyed by "
            f"step; {_name(loss)} draws from Python's or NumPy's. Use torch.rand, or draw in the batches."
        )
    with contextlib.suppress(TypeError):  # a callable that cannot be kept weakly is watched every time
        checked[model].add(loss)


_Checked = weakref.WeakKeyDictionary[nn.Module, "weakref.WeakSet[Any]"]
_CAPTURED: _Checked = weakref.WeakKeyDictionary()
_GIVEN: _Checked = weakref.WeakKeyDictionary()
_ANSWER = "_dovetail_answer"


def _losses() -> "weakref.WeakSet[Any]":
    return weakref.WeakSet()


@functools.cache
def _make_stand_in(own: Any) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[_ANSWER](ModelCall(args=args, kwargs=kwargs))

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    return type(own.__name__, (own,), {"forward": forward, "__call__": forward, **names})


@contextlib.contextmanager
def _refusing_parts(model: nn.Module) -> Iterator[None]:
    def refuse(path: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            raise TechniqueRefused(
                f"the loss must call the model as a whole for the model to be cut; it calls its part {path!r}. "
                f"Move that call into the model's forward."
            )

        return called

    before = [(part, vars(part).get(COMPILED_CALL)) for path, part in model.named_modules() if path]
    for path, part in model.named_modules():
        if path:
            vars(part)[COMPILED_CALL] = refuse(path)
    try:
        yield
    finally:
        for part, old in before:
            if old is None:
                vars(part).pop(COMPILED_CALL, None)
            else:
                vars(part)[COMPILED_CALL] = old


class _Hidden(torch.overrides.TorchFunctionMode):
    """Within, computing with these tensors is refused; asking for their device, dtype or shape is not."""

    def __init__(self, tensors: set[int]) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, unless it gives a value computed from a hidden tensor."""
        found = func(*args, **(kwargs or {}))
        if any(id(leaf) in self._tensors for leaf in tensors_in((args, kwargs))) and tensors_in(found):
            raise TechniqueRefused(
                f"the loss must see its model only through the call's output for the model to be cut; it computes "
                f"{operation_name(func)!r} of a parameter. Move that into the model's forward, and return it."
            )
        return found


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """All tensors in a nested value.

    >>> len(tensors_in({"a": [torch.ones(1), 2]}))
    1
    """
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def operation_name(function: Any) -> str:
    """What a user would call a function of torch's.

    >>> operation_name(torch.Tensor.add), operation_name(torch.Tensor.T.__get__)
    ('add', 'T')
    """
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "__get__":  # an attribute: its descriptor knows its name
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return str(name)


def _name(loss: Any) -> str:
    return repr(getattr(loss, "__qualname__", type(loss).__name__))
