"""Which layer's output reaches which layer's input, for any module, by watching one forward pass.

Every operation is seen below autograd, so frozen layers, integer tensors, in-place writes, views and custom
functions are followed alike. What is known of a tensor is kept by its storage: the layers it was computed from.

A layer is a call of a module inside which no other module was called, or of a module with parameters of its own;
such a module with others inside gives those its parameters and takes part as their source. An operation between
modules that brings several layers' outputs together (a residual sum) is a layer too, as in PipeDream's graphs:
without it every sum along a residual stream would have an edge from every layer before it, and a cut would seem
to pass the stream many times over. Knows modules; knows nothing of time.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.profile.batch_structure import tensors_in
from dovetail.train.cutting.interceptor import is_opaque
from dovetail.train.cutting.record import version_of
from dovetail.train.postponed_compiler import leave_out_mark


@dataclasses.dataclass(kw_only=True)
class LayerCall:
    """One call of a module: the second call of `encoder` is named `encoder#2`; the model itself is named ''.

    Without a module, it is an operation that joins layers: `encoder+1` is the first inside `encoder`.
    """

    name: str
    operation: str
    module: nn.Module | None = None
    is_whole: bool = True
    """No module was called inside."""
    activation_bytes: int = 0
    sources: set[str] = dataclasses.field(default_factory=set)

    @property
    def is_layer(self) -> bool:
        """Whether this call does work that no call inside it does."""
        return self.module is None or self.is_whole or bool(_own_parameters(self.module))


class CallNames:
    """Numbers the calls of each module in one forward pass.

    >>> names = CallNames()
    >>> names.next("a"), names.next("b"), names.next("a")
    ('a', 'b', 'a#2')
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, module: str) -> str:
        """The name of this call of the module."""
        self._counts[module] += 1
        number = self._counts[module]
        return module if number == 1 else f"{module}#{number}"


class Flow(TorchDispatchMode):
    """Watches a forward pass. Use it as a context, with `watch` on every module; then read `layers`."""

    def __init__(self) -> None:
        super().__init__()
        self._names = CallNames()
        self._joins: dict[frozenset[str], LayerCall] = {}
        self._join_counts: Counter[str] = Counter()
        self._calls: list[LayerCall] = []
        self._open: list[tuple[LayerCall, dict[Any, int]]] = []
        # Operations of the innermost open call, while it is not known whether modules will be called inside.
        self._pending: list[tuple[Any, Any, str]] = []
        # Weak references keep no data alive; unlike addresses, no two storages ever share one.
        self._reached: dict[Any, frozenset[str]] = {}

    def layers(self) -> list[LayerCall]:
        """The layers in the order in which they were called, each with the layers it takes from."""
        return [call for call in self._calls if call.is_layer]

    def watch(self, name: str, module: nn.Module) -> list[Any]:
        """Put hooks on a module; gives their handles."""

        def enter(module: nn.Module, arguments: Any, keywords: Any) -> None:
            call = LayerCall(name=self._names.next(name), operation=type(module).__name__, module=module)
            self._enter(call, module, [arguments, keywords])

        def leave(module: nn.Module, arguments: Any, output: Any) -> Any:
            return self._leave(module, output)

        return [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave),
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note what it took and gave."""
        outputs = func(*args, **(kwargs or {}))
        inputs = [_storage(tensor) for tensor in tensors_in([args, kwargs])]
        found = [(_storage(tensor), tensor.nbytes) for tensor in tensors_in(outputs)]
        self._pending.append((inputs, found, str(func).split(".")[1]))
        if not (self._open and self._open[-1][0].is_whole):
            self._pass_on()
        return outputs

    def _pass_on(self) -> None:
        """Operations between layers: what they give was computed from what all of their inputs were."""
        for inputs, outputs, operation in self._pending:
            sources = self._sources(inputs)
            if len(sources) > 1:
                sources = frozenset({self._join(sources, operation, sum(size for _, size in outputs))})
            self._reached.update({storage: sources for storage, _ in outputs})
        self._pending.clear()

    def _join(self, sources: frozenset[str], operation: str, size: int) -> str:
        # Operations on the same layers' outputs (the products of a rotary embedding) are one layer.
        if sources not in self._joins:
            around = self._open[-1][0].name if self._open else ""
            self._join_counts[around] += 1
            name = f"{around}+{self._join_counts[around]}"
            self._joins[sources] = LayerCall(name=name, operation=operation, sources=set(sources))
            self._calls.append(self._joins[sources])
        join = self._joins[sources]
        join.activation_bytes = max(join.activation_bytes, size)
        return join.name

    def _sources(self, storages: Iterable[Any]) -> frozenset[str]:
        return frozenset().union(*(self._reached.get(storage, ()) for storage in storages))

    def _enter(self, call: LayerCall, module: nn.Module, inputs: Any) -> None:
        if self._open:
            self._open[-1][0].is_whole = False
        self._pass_on()
        versions = {_storage(tensor): version_of(tensor) for tensor in tensors_in(inputs)}
        call.sources |= self._sources(versions)
        self._calls.append(call)
        self._open.append((call, versions))
        own = _own_parameters(module)
        if own and not is_opaque(module) and any(True for _ in module.children()):
            self._reached.update({_storage(tensor): frozenset({call.name}) for tensor in own})
            call.activation_bytes = sum(tensor.nbytes for tensor in own)

    def _leave(self, module: nn.Module, output: Any) -> Any:
        call, versions = self._open.pop()
        while call.module is not module:  # a call inside raised, and the model caught it
            call, versions = self._open.pop()
        if not call.is_whole:
            return output
        if isinstance(output, torch.Tensor) and versions.get(_storage(output)) == version_of(output):
            # Handed on untouched (Identity, Flatten): a copy tells what comes after it from what goes around it.
            output = output.clone()
        for inputs, _, _ in self._pending:
            call.sources |= self._sources(inputs)
        self._pending.clear()
        call.activation_bytes = sum(tensor.nbytes for tensor in tensors_in(output))
        self._reached.update({_storage(tensor): frozenset({call.name}) for tensor in tensors_in(output)})
        return output


leave_out_mark(Flow, "__torch_dispatch__")


def edges(layers: list[LayerCall]) -> tuple[tuple[str, str], ...]:
    """Pairs of layer names between which data flows, in the order of the calls.

    >>> edges([LayerCall(name="a", operation="ReLU"), LayerCall(name="b", operation="ReLU", sources={"a", "b"})])
    (('a', 'b'),)
    """
    order = {layer.name: number for number, layer in enumerate(layers)}
    found = {(source, layer.name) for layer in layers for source in layer.sources if source in order}
    return tuple(sorted((pair for pair in found if pair[0] != pair[1]), key=lambda pair: [order[n] for n in pair]))


def _own_parameters(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except NotImplementedError:  # sparse tensors have several
        return id(tensor)
