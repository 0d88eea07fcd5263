"""What a step function, a loss or callbacks of the user's keep in variables of their own, and change: no checkpoint has
it, so it would be lost at the first stop, and training would go on as another. It is found out and refused, with what
to do instead.

A scheduler, an optimizer, a gradient scaler or an iterator that is not declared is refused at once: it is made to
change. Other variables, of closures, of bound objects and of the functions' modules, are compared after steps 1, 2, 4,
8 and so on. A dict may gain keys once, as a cache does that the first step fills.
"""

import dataclasses
import functools
import itertools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from dovetail.describe.installed import is_installed
from dovetail.train.base import Training
from dovetail.train.schedulers import schedulers_of
from dovetail.vocabulary import ProgramError

_SCALARS = bool | int | float | complex | str | bytes | None
_DATA = (Dataset, DataLoader, Sampler)
_ITEMS = 64  # of a container are looked at; one that grows tells by its length
_DEPTH = 4
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKED_ELEMENTS = 1 << 24  # of a larger tensor only the count of its changes in place is looked at, of an array...
_SAMPLED_ELEMENTS = 1 << 16  # ...so many elements, evenly apart
_LONG_TEXT = 1 << 10
_RANDOM = torch.Generator | random.Random | numpy.random.Generator | numpy.random.RandomState


class UndeclaredState:
    """The variables of a training's functions as they are when this is made, before its first step.

    >>> def build(count):
    ...     def step(training, batch):
    ...         count[0] += 1
    ...         return {"loss": 0.0}
    ...     model = nn.Linear(1, 1)
    ...     return Training(model=model, batches=[], optimizer=torch.optim.SGD(model.parameters()), step=step)
    >>> training = build([0])
    >>> found = UndeclaredState(training)
    >>> _ = training.step(training, None)
    >>> try:
    ...     found.check(1)
    ... except ProgramError as error:
    ...     print(str(error)[:83])
    what Training.step changes must be declared; its variable 'count' changed in the fi
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._declared = {id(thing) for thing in _declared_things(training)}
        self._grown: set[tuple[str, str]] = set()
        for whose, name, value in self._variables():
            # A gradient scaler that is not enabled has nothing to save.
            if _is_stateful(value) and not isinstance(value, nn.Module) and value.state_dict():
                raise _refusal(whose, f"its variable {name!r}, a {type(value).__name__}, is not")
        self._before = self._marks()

    def check(self, steps: int) -> None:
        """Raise `ProgramError` where a variable is not what it was before the first of these steps."""
        for variable, mark in self._marks().items():
            # One that a step made itself is looked at from then on.
            before = self._before.setdefault(variable, mark)
            if mark != before and (variable in self._grown or not _has_only_grown(before, mark)):
                whose, name = variable
                raise _refusal(whose, f"its variable {name!r} changed in the first {steps} steps and is not")
            if mark != before:
                self._grown.add(variable)
                self._before[variable] = mark

    def _marks(self) -> dict[tuple[str, str], Any]:
        marks = {}
        for whose, name, value in self._variables():
            if _is_drawn_from(value):
                kind = type(value).__name__
                raise _refusal(whose, f"its variable {name!r}, a {kind}, is not: its position is in no checkpoint")
            marks[whose, name] = self._mark(value)
        return marks

    def _variables(self) -> Iterator[tuple[str, str, Any]]:
        """The functions' variables, by whose they are and by name, without those that checkpoints have."""
        training = self._training
        functions = [("step" if training.step is not None else "loss", training.step or training.loss)]
        functions += [(f"callbacks[{number}]", each) for number, each in enumerate(training.callbacks)]
        found = [(whose, *each) for whose, function in functions for each in reached_by(function)]
        found += [(functions[0][0], *each) for each in _added_attributes(training).items()]
        return ((whose, name, value) for whose, name, value in found if id(value) not in self._declared)

    def _mark(self, value: Any, depth: int = 0) -> Any:
        """Something that is equal for as long as a value is the same."""
        if id(value) in self._declared or depth > _DEPTH or isinstance(value, (*_DATA, type, types.ModuleType)):
            return None
        if isinstance(value, str | bytes) and len(value) > _LONG_TEXT:
            return len(value), hash(value)
        if isinstance(value, _SCALARS | itertools.count):
            return repr(value)
        if isinstance(value, torch.Tensor | numpy.ndarray | _RANDOM):
            return _bits(value)
        if isinstance(value, nn.Module):
            return [self._mark(tensor, depth + 1) for tensor in value.state_dict(keep_vars=True).values()]
        if isinstance(value, Mapping):
            items = list(value.items())[:_ITEMS]
            return {None: len(value), **{repr(key): self._mark(item, depth + 1) for key, item in items}}
        if isinstance(value, list | tuple | deque):
            ends = [*value][:_ITEMS] + [*value][-_ITEMS:]
            return [len(value), [self._mark(item, depth + 1) for item in ends]]
        if isinstance(value, set):
            return len(value)
        if _is_stateful(value):
            return self._mark(value.state_dict(), depth + 1)
        return self._mark(vars(value), depth + 1) if _is_of_own_class(value) else None


def _declared_things(training: Training) -> Iterator[Any]:
    yield from (training, training.batches, training.schedule, *training.schedules.values(), *training.state.values())
    yield from (each.scheduler for each in schedulers_of(training).values())
    for module in (training.model, *(each for each in training.state.values() if isinstance(each, nn.Module))):
        yield from (*module.modules(), *module.parameters(), *module.buffers())
    for optimizer in training.optimizers().values():
        yield from (optimizer, optimizer.state, optimizer.param_groups, *optimizer.param_groups)


def _added_attributes(training: Training) -> dict[str, Any]:
    """What a step has put onto the training itself."""
    fields = {field.name for field in dataclasses.fields(training)}
    return {f"training.{name}": value for name, value in vars(training).items() if name not in fields}


def reached_by(step: Any) -> Iterator[tuple[str, Any]]:
    """What a callable reaches: closures, defaults, its object's attributes, and plain values and things with a state of
    its module, by name.

    >>> count = [1]
    >>> dict(reached_by(lambda model, batch, *, scale=2.0, count=count: count))
    {'scale': 2.0, 'count': [1]}
    """
    return _variables_of(step, set())


def _variables_of(step: Any, seen: set[int], prefix: str = "") -> Iterator[tuple[str, Any]]:
    if id(step) in seen:
        return
    seen.add(id(step))
    if isinstance(step, functools.partial):
        yield from ((f"{prefix}{name}", value) for name, value in _arguments(step))
        yield from _variables_of(step.func, seen, prefix)
    elif isinstance(step, types.MethodType):
        yield from ((f"{prefix}self.{name}", value) for name, value in _attributes(step.__self__))
        yield from _variables_of(step.__func__, seen, prefix)
    elif isinstance(step, types.FunctionType):
        for name, value in _names_of(step):
            yield f"{prefix}{name}", value
            if isinstance(value, types.FunctionType | types.MethodType | functools.partial) and _is_own(value):
                yield from _variables_of(value, seen, f"{name}.")
    elif callable(step) and not isinstance(step, type):
        yield from ((f"{prefix}self.{name}", value) for name, value in _attributes(step))
        yield from _variables_of(type(step).__call__, seen, prefix)


def _arguments(step: "functools.partial[Any]") -> list[tuple[str, Any]]:
    return [*((str(number), value) for number, value in enumerate(step.args)), *step.keywords.items()]


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    return list(getattr(thing, "__dict__", {}).items())


def _names_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # not assigned yet
            yield name, cell.cell_contents
    yield from ((f"default {number}", value) for number, value in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        # A module's containers are most often caches; what a step counts there, or steps, is not.
        if isinstance(value, _SCALARS | types.FunctionType) or _is_stateful(value) or _is_drawn_from(value):
            yield name, value


def _is_own(function: Any) -> bool:
    inner = getattr(function, "func", None) or getattr(function, "__func__", function)
    return isinstance(inner, types.FunctionType) and not is_installed(inner.__code__.co_filename)


def _is_stateful(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, *_DATA)):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_drawn_from(value: Any) -> bool:
    """Whether a value is an iterator whose position cannot be seen. Files are, but what they hold is not training's."""
    if isinstance(value, itertools.count) or not isinstance(value, Iterator) or _is_stateful(value):
        return False
    return not hasattr(value, "read") and not hasattr(value, "write")


def _has_only_grown(before: Any, now: Any) -> bool:
    """Whether marks differ by keys alone that dicts have gained."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return bool(before == now)
    return now[None] >= before[None] and all(
        key in now and _has_only_grown(mark, now[key]) for key, mark in before.items() if key is not None
    )


def _is_of_own_class(value: Any) -> bool:
    name = type(value).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return hasattr(value, "__dict__") and (name == "__main__" or (file is not None and not is_installed(file)))


def _bits(value: Any) -> Any:
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, numpy.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return _bits(value.get_state())
    if isinstance(value, numpy.ndarray):
        return value.shape, _array_bits(value)
    if value.layout != torch.strided or value.is_meta or value.numel() > _CHECKED_ELEMENTS:
        return value.shape, value._version
    # Through `.data` values change in place without being counted, so their bits are added up.
    flat = torch.view_as_real(value) if value.is_complex() else value
    bits = flat.detach().flatten().view(_INTEGERS[flat.element_size()])
    return value.shape, int(bits.sum(dtype=torch.int64))


def _array_bits(array: "numpy.ndarray[Any, Any]") -> int | None:
    if array.dtype.hasobject or not array.flags.writeable:
        return None
    is_large = array.size > _CHECKED_ELEMENTS  # as one that is mapped from a file, and would be read whole
    return hash((array.flat[:: array.size // _SAMPLED_ELEMENTS] if is_large else array).tobytes())


def _refusal(whose: str, what: str) -> ProgramError:
    return ProgramError(
        f"what Training.{whose} changes must be declared; {what}, so it would be lost when training stops and goes on. "
        f"Give schedulers as Training(schedules={{name: ...}}) and anything else as Training(state={{name: ...}}), "
        f"each with state_dict() and load_state_dict(), and draw data from Training.batches. What does not decide how "
        f"training goes on, such as a cache, may stand in a list or dict at the top level of the file."
    )


def refuse_declared(training: Training, *, name: str) -> str | None:
    """Why a technique that takes steps in parts, or in several processes, cannot train this, where it cannot."""
    for what in ("callbacks", "state"):
        if getattr(training, what):
            return (
                f"Training.{what} goes with whole steps in one process, which {name} does not take; use technique "
                f"'resident' or 'together', or leave it out"
            )
    return None


def refuse_scaling(training: Training, *, name: str) -> str | None:
    """Why a technique that never has all gradients of a batch at once, or divides a batch's rows so that gradients are
    of another size, cannot scale the loss of this, where it is to be scaled."""
    if training.precision != "fp16":
        return None
    return (
        f"precision 'fp16' leaves a step out where a gradient of the whole batch overflows, and {name} computes that "
        f"in parts, which overflow at other steps; use precision 'bf16', or technique 'resident' or 'together'"
    )
