"""Recording one run of a model: what it calls, what flows from where to where, what it writes and draws.

The run is a real one on the example call, so whatever Python the model's code does is done. `untouched` puts buffers
and random numbers back afterwards.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from dovetail.train.cutting.generator_states import generator_states, set_generator_states
from dovetail.train.cutting.interceptor import Interceptor, visible_modules
from dovetail.train.cutting.model_calls import ModelCall, operation_name
from dovetail.train.cutting.pieces import Like, is_plain
from dovetail.train.cutting.record import (
    OPAQUE,
    Record,
    Same,
    TraceEvent,
    Value,
    signature,
    storage_of,
    version_of,
)
from dovetail.train.cutting.tensor_layouts import TensorLayout
from dovetail.train.weights import Buffers

# Operations that read a tensor's numbers into Python. Others that give no tensor (`shape`, `dim`) do not read them.
_READERS = {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__bool__", "__int__", "__float__"}
_READERS |= {"__index__", "__complex__", "__contains__", "__array__", "__format__", "__repr__"}


Tensors = dict[Value, torch.Tensor]


def watch(model: nn.Module, call: ModelCall) -> tuple[Record, Any, Tensors]:
    """What a call of the model does, what it returns, and every tensor of it. Do it within `untouched`.

    >>> record, _, _ = watch(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ModelCall(args=(torch.ones(1, 2),)))
    >>> [event.name for event in record.events]
    ['', '0', '1']
    """
    watcher = _Watcher(model, call)
    with watcher.intercepting(visible_modules(model)):
        output = model(*call.args, **call.kwargs)
    return watcher.record(), output, watcher.tensors()


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put buffers and random numbers back afterwards as they were.

    >>> norm = nn.BatchNorm1d(2)
    >>> with untouched(norm):
    ...     _ = norm(torch.ones(2, 2))
    >>> int(norm.num_batches_tracked)
    0
    """
    buffers = Buffers(model.modules())
    python, numbers = random.getstate(), numpy.random.get_state()
    states = generator_states()
    try:
        yield
    finally:
        buffers.put_back()
        random.setstate(python)
        numpy.random.set_state(numbers)
        set_generator_states(states)


class _Watcher(Interceptor):
    def __init__(self, model: nn.Module, call: ModelCall) -> None:
        super().__init__()
        self._events: list[TraceEvent] = []
        self._open: list[TraceEvent] = []
        self._counts: dict[str, int] = {}
        self._frames: dict[int, tuple[int, Any]] = {}
        self._opening: TraceEvent | None = None
        self._writers: dict[Any, TraceEvent] = {}
        self._held = {id(tensor): name for name, tensor in named_tensors(model).items()}
        # With the tensors themselves, for an address is theirs only while they live.
        self._values: dict[int, tuple[torch.Tensor, Value]] = {}
        self._began = generator_states()
        self._drew = False
        leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
        self._inputs = [
            self._add_value(leaf, f"input.{n}", None) if isinstance(leaf, torch.Tensor) else None
            for n, leaf in enumerate(leaves)
        ]

    def record(self) -> Record:
        """The record of the run that was watched: its events, its inputs, and whether it drew random numbers."""
        return Record(events=self._events, inputs=self._inputs, drew=self._drew)

    def tensors(self) -> Tensors:
        """What each value was, as the model's code left it."""
        return {value: tensor for tensor, value in self._values.values()}

    def on_call(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Record the call, and what is inside it."""
        self._counts[path] = count = self._counts.get(path, 0) + 1
        name = path if count == 1 else f"{path}#{count}"
        event = self._event(module, name, module)
        for around in self._open:
            around.is_whole = False
        self._open.append(event)
        try:
            if module in self._opaque:
                output = self._leaf(event, args, kwargs, lambda: self.natively(module, args, kwargs))
            else:
                event.is_leaf = False
                inputs = pytree.tree_leaves((args, kwargs))
                output = self.call_within(module, args, kwargs)
                self._gave(event, inputs, output)
        finally:
            self._open.pop()
        event.end = len(self._events)
        return output

    def on_operation(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Record the operation, if it makes, changes or reads a tensor."""
        number = len(self._events)
        event = TraceEvent(number=number, what=function, name=operation_name(function), parent=self._open[-1])
        output = self._leaf(event, args, kwargs, lambda: self.execute(function, args, kwargs))
        event.is_read = not event.makes and event.name in _READERS
        if event.outputs_tensor or event.writes or event.changes or event.is_read:
            event.end = number + 1
            self._events.append(event)
        return output

    def _event(self, what: Any, name: str, module: nn.Module | None) -> TraceEvent:
        parent = self._open[-1] if self._open else None
        event = TraceEvent(number=len(self._events), what=what, name=name, parent=parent, module=module)
        self._events.append(event)
        return event

    def _leaf(self, event: TraceEvent, args: Any, kwargs: Any, run: Any) -> Any:
        inputs = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in inputs if isinstance(leaf, torch.Tensor)]
        inside = list(named_tensors(event.module).values()) if event.module is not None else []
        for tensor in (*tensors, *inside):
            self._read(event, tensor)
        before = [(tensor, version_of(tensor)) for tensor in (*tensors, *inside)]
        event.frame = self._frame(event)
        states = generator_states()
        output = run()
        event.draws = not torch.equal(states, generator_states())
        self._drew |= event.draws
        for tensor, version in before:
            if version_of(tensor) != version:
                self._note_write(event, tensor)
        self._gave(event, inputs, output)
        return output

    def _frame(self, event: TraceEvent) -> int | None:
        """The number of the stretch of code that is computed again in backward as one, if the event is in one."""
        if event.name == "_NoopSaveInputs.apply":  # torch's checkpoint begins: keeps what the stretch takes
            self._opening = event
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is None or "_checkpoint_hook" not in getattr(hooks[0], "__qualname__", ""):
            return None
        if id(hooks[0]) not in self._frames:
            self._frames[id(hooks[0])] = (len(self._frames), hooks)  # kept, so that no other has this address
            if self._opening is not None:
                self._opening.frame, self._opening = len(self._frames) - 1, None
        return self._frames[id(hooks[0])][0]

    def _read(self, event: TraceEvent, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage in self._writers:
            event.after.append(self._writers[storage])
        if id(tensor) in self._held:
            event.held.add(self._held[id(tensor)])
        elif id(tensor) in self._values:
            event.reads.append(self._values[id(tensor)][1])

    def _note_write(self, event: TraceEvent, tensor: torch.Tensor) -> None:
        if id(tensor) in self._held:
            event.changes.add(self._held[id(tensor)])
        storage = storage_of(tensor)
        event.writes.add(storage)
        self._writers[storage] = event
        for other, value in self._values.values():
            if value.storage == storage:
                like = _make_like(other)
                event.reshapes |= (like.shape, like.dtype) != (value.like.shape, value.like.dtype)
                value.history.append((event, like))

    def _gave(self, event: TraceEvent, inputs: list[Any], output: Any) -> None:
        places: dict[int, int] = {}
        for leaf in inputs:
            if isinstance(leaf, torch.Tensor):
                places.setdefault(id(leaf), len(places))
        event.inputs = signature(inputs)
        leaves, event.tree = pytree.tree_flatten(output)
        event.outputs = [self._output(event, leaf, places) for leaf in leaves]

    def _output(self, event: TraceEvent, leaf: Any, places: dict[int, int]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf if is_plain(leaf) else OPAQUE
        event.outputs_tensor = True
        if id(leaf) in places:
            return Same(places[id(leaf)])
        if id(leaf) in self._values:
            return self._values[id(leaf)][1]
        if id(leaf) in self._held or not event.is_leaf:
            # The model's own, or one that nobody was seen to make: both are there in every process.
            return OPAQUE
        made = self._add_value(leaf, f"{event.name or 'model'}:{event.number}.{len(event.makes)}", event)
        event.makes.append(made)
        return made

    def _add_value(self, tensor: torch.Tensor, name: str, producer: TraceEvent | None) -> Value:
        value = Value(
            name=name,
            storage=storage_of(tensor),
            producer=producer,
            device=tensor.device,
            layout=TensorLayout.of(tensor),
            history=[(producer, _make_like(tensor))],
        )
        self._values[id(tensor)] = (tensor, value)
        return value


def _make_like(tensor: torch.Tensor) -> Like:
    return Like(shape=tuple(tensor.shape), dtype=tensor.dtype, requires_grad=tensor.requires_grad)


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by canonical name, each once.

    >>> list(named_tensors(nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
