"""How long each layer of a model takes, forward and backward, and how data flows between layers.

Forward, a layer's time runs from its start to the next layer's start, so that work between modules (a residual
sum, attention's products, the loss) counts to the layer before it, and all layers together take what the pass
takes; layers that are sums themselves (see `flow`) take no time of their own.

Backward the same cuts are made: autograd numbers its nodes in the order in which forward made them and runs the
highest number first, so the highest node of each layer's stretch is where its backward begins. A hook on that
node alone works where module hooks do not: with in-place operations and inputs without gradients.
"""

import bisect
import contextlib
import copy
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr

from dovetail.profile.clocks import Clock, clock_for
from dovetail.profile.flow import CallNames, Flow, LayerCall, edges
from dovetail.profile.model_guard import forget_gradients, hooks, untouched
from dovetail.train.base import Training
from dovetail.train.cutting.interceptor import visible_modules
from dovetail.train.loop import AUTOCAST, to_device
from dovetail.train.postponed_compiler import uncompiled
from dovetail.vocabulary import LayerProfile

Layers = tuple[LayerProfile, ...]
Edges = tuple[tuple[str, str], ...]
_LEAF = 1 << 62  # nodes that gather a parameter's gradient have no number of their own, but the highest there is


def measure_layers(training: Training, batch: Any, *, device: torch.device, repeats: int = 3) -> tuple[Layers, Edges]:
    """The layers of a training's model in the order of their calls, and the edges between them.

    Both are empty where the training takes steps of its own, or the model cannot be watched. The model, its
    gradients and all random numbers are left as they were.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> training = Training(model=model, batches=[], loss=lambda model, batch: model(batch).mean(),
    ...                     optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    >>> layers, edges = measure_layers(training, torch.ones(4, 2), device=torch.device("cpu"))
    >>> [(layer.name, layer.operation, layer.parameter_bytes) for layer in layers], edges
    ([('0', 'Linear', 36), ('1', 'ReLU', 0), ('2', 'Linear', 16)], (('0', '1'), ('1', '2')))
    """
    if training.loss is None or any(nn.parameter.is_lazy(parameter) for parameter in training.model.parameters()):
        return (), ()
    try:
        # Hooks would be compiled along, and CUDA events in them never recorded.
        with untouched(training.model, device=device), uncompiled():
            calls = _trace(training, batch, device)
            passes = [_time(training, batch, device, calls) for _ in range(repeats)] if calls else []
        return _profiles(training.model, calls, passes), edges(calls)
    except Exception:
        # Scripted and distributed models may refuse hooks with whatever they like. Layers are
        # extra knowledge; the session that takes whole steps is where a fault of the model is reported.
        return (), ()


def _trace(training: Training, batch: Any, device: torch.device) -> list[LayerCall]:
    flow = Flow()
    with hooks() as handles:
        for name, module in visible_modules(training.model).items():
            handles.extend(flow.watch(name, module))
        fresh = _copy_batch(batch, device)
        with flow:
            loss = _loss(training, fresh, device)
    _backward(training.model, loss)  # warms backward up for the passes that are timed
    return flow.layers()


def _time(training: Training, batch: Any, device: torch.device, calls: Sequence[LayerCall]) -> "_Pass":
    found = _Pass(clock_for(device), {call.name for call in calls})
    modules = {call.module for call in calls}
    with hooks() as handles:
        for name, module in visible_modules(training.model).items():
            if module in modules:
                handles.append(module.register_forward_pre_hook(found.make_entry_hook(name)))
        fresh = _copy_batch(batch, device)
        found.begin()
        loss = _loss(training, fresh, device)
        found.turn(loss)
    _backward(training.model, loss)
    found.end()
    return found


def _loss(training: Training, batch: Any, device: torch.device) -> torch.Tensor:
    assert training.loss is not None
    dtype = AUTOCAST.get(training.precision)
    with torch.autocast(device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext():
        found = training.loss(training.model, batch)
    return found[0] if isinstance(found, tuple) else found


def _copy_batch(batch: Any, device: torch.device) -> Any:
    # A copy, since a loss may take labels out of the batch or scale it in place.
    return to_device(copy.deepcopy(batch), device)


def _backward(model: nn.Module, loss: torch.Tensor) -> None:
    if loss.requires_grad:
        loss.backward()
    forget_gradients(model)


class _Pass:
    """Marks of one forward and one backward pass: at which moment each layer began."""

    def __init__(self, clock: Clock, layers: set[str]) -> None:
        self._clock, self._layers, self._names = clock, layers, CallNames()
        self._is_forward = False
        self._starts: list[int] = []
        self._forward: list[tuple[str, Any]] = []
        self._backward: list[tuple[str, Any]] = []
        self._marks: list[Any] = []

    def begin(self) -> None:
        """Mark the beginning of forward."""
        self._is_forward = True
        self._marks = [self._clock.mark()]

    def make_entry_hook(self, module: str) -> Any:
        """A hook that marks each call of the module which is a layer."""

        def enter(*_: Any) -> None:
            if not self._is_forward:  # activation checkpointing calls modules again during backward
                return
            name = self._names.next(module)
            if name in self._layers:
                self._starts.append(_get_sequence_nr())
                self._forward.append((name, self._clock.mark()))

        return enter

    def turn(self, loss: torch.Tensor) -> None:
        """Mark the end of forward; backward comes next."""
        self._is_forward = False
        self._marks.append(self._clock.mark())
        for number, node in _first_nodes(loss, self._starts).items():
            node.register_prehook(self._make_node_hook(self._forward[number][0]))
        self._marks.append(self._clock.mark())

    def end(self) -> None:
        """Mark the end of backward."""
        self._marks.append(self._clock.mark())

    def forward_seconds(self) -> dict[str, float]:
        """The seconds of each layer's forward."""
        return self._seconds(self._forward, self._marks[0], self._marks[1])

    def backward_seconds(self) -> dict[str, float]:
        """The seconds of each layer's backward; layers that no gradient passes are absent."""
        return self._seconds(self._backward, self._marks[2], self._marks[3])

    def _make_node_hook(self, name: str) -> Any:
        return lambda _: self._backward.append((name, self._clock.mark()))

    def _seconds(self, marks: list[tuple[str, Any]], start: Any, end: Any) -> dict[str, float]:
        # What comes before the first layer counts to it.
        moments = [start, *(mark for _, mark in marks[1:]), end]
        spans = zip(marks, moments[:-1], moments[1:], strict=True) if marks else ()
        return {name: max(0.0, self._clock.seconds(before, after)) for (name, _), before, after in spans}


def _first_nodes(loss: torch.Tensor, starts: Sequence[int]) -> dict[int, Any]:
    """For each layer, by its place in `starts`, the autograd node at which its backward begins."""
    found: dict[int, Any] = {}
    stack, seen = [loss.grad_fn] if loss.grad_fn is not None and starts else [], set()
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(following for following, _ in node.next_functions)
        number = node._sequence_nr()
        if number < _LEAF:
            layer = max(0, bisect.bisect_right(starts, number) - 1)
            if layer not in found or number > found[layer]._sequence_nr():
                found[layer] = node
    return found


def _profiles(model: nn.Module, calls: Sequence[LayerCall], passes: Sequence[_Pass]) -> Layers:
    owned = parameter_bytes(model, [call.name for call in calls if call.module is not None])
    forward = [each.forward_seconds() for each in passes]
    backward = [each.backward_seconds() for each in passes]
    return tuple(
        LayerProfile(
            name=call.name,
            operation=call.operation,
            forward_seconds=_median(forward, call.name),
            backward_seconds=_median(backward, call.name),
            activation_bytes=call.activation_bytes,
            parameter_bytes=owned.get(call.name, 0),
        )
        for call in calls
    )


def _median(passes: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median([seconds.get(name, 0.0) for seconds in passes])


def parameter_bytes(model: nn.Module, layers: Sequence[str]) -> dict[str, int]:
    """The bytes of parameters of each layer, each parameter once, at the earliest of the layers that share it.

    A parameter of a module that is no layer counts to the layer nearest to it in the tree.

    >>> tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> tied[1].weight = tied[0].weight
    >>> parameter_bytes(tied, ["0", "1"])
    {'0': 24, '1': 8}
    """
    order = {name: number for number, name in enumerate(layers)}
    owners: dict[nn.Parameter, str] = {}
    for module, part in model.named_modules() if layers else ():
        for parameter in part.parameters(recurse=False):
            owner = module if module in order else _nearest(layers, module)
            owners[parameter] = min(owners.get(parameter, owner), owner, key=order.__getitem__)
    found = dict.fromkeys(owners.values(), 0)
    for parameter, owner in owners.items():
        found[owner] += parameter.nbytes
    return found


def _nearest(layers: Sequence[str], module: str) -> str:
    """The layer that shares most steps from the root with a module: first those around it, then the earliest."""

    def nearness(layer: str) -> tuple[int, bool]:
        ours, theirs = layer.split(".") if layer else [], module.split(".") if module else []
        pairs = enumerate(zip(ours, theirs, strict=False))
        shared = next((number for number, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
        return shared, shared == len(ours)

    return max(layers, key=nearness)
