"""Running one stage: the model's own code from its beginning, passing over what other stages do.

What other stages computed arrives, or is absent and only says its shape. After its last event a stage leaves the
model's code. Shapes may differ from those of the recorded run; which operations there are, and in which order, may not.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree

from dovetail.train.cutting.absent import Absent, absent, shapes
from dovetail.train.cutting.generator_states import generator_states, set_generator_states
from dovetail.train.cutting.interceptor import Interceptor
from dovetail.train.cutting.model_calls import ModelCall, operation_name
from dovetail.train.cutting.pieces import Like, Piece
from dovetail.train.cutting.record import OPAQUE, Same, TraceEvent, Value, signature
from dovetail.train.cutting.replay_plan import ReplayPlan, ReplayStep
from dovetail.train.cutting.tensor_layouts import Arriving, Leaving
from dovetail.train.randomness import count_call
from dovetail.vocabulary import TechniqueRefused

RANDOM = "random"
OUTPUT = "output"
_MOST_KNOWN = 100_000  # shapes of values of other stages, a kilobyte each, where sizes vary by step


class TracedPiece(Piece):
    """A stage of any model, following its plan through the model's code."""

    def __init__(
        self,
        model: nn.Module,
        call: ModelCall,
        plan: ReplayPlan,
        *,
        modules: dict[str, nn.Module],
        held: Mapping[str, torch.Tensor],
        likes: Mapping[str, Like],
    ) -> None:
        super().__init__(model, held)
        self._plan, self._intercepted = plan, modules
        self._leaves, self._tree = pytree.tree_flatten((call.args, dict(call.kwargs)))
        self._there = next((leaf.device for leaf in self._leaves if isinstance(leaf, torch.Tensor)), "cpu")
        self._known: dict[Any, list[Any]] = {}
        self.takes = (*plan.takes, *([RANDOM] if plan.takes_random else ()))
        self.gives = (OUTPUT,) if plan.is_last else (*plan.gives, *([RANDOM] if plan.gives_random else ()))
        self.likes = likes

    def forward(self, values: Mapping[str, Any], *, call: ModelCall | None = None) -> dict[str, Any]:
        """Run the model's code for this stage; gives its outputs by name."""
        if missing := [name for name in self.takes if name not in values]:
            raise ValueError(f"stage {self._plan.stage} must be given what it takes; {missing} is missing.")
        arrived = {value: self._lay_out_arrived(value, values[name]) for name, value in self._plan.takes.items()}
        here = next((tensor.device for tensor in arrived.values()), self._there)
        follower = _Follower(self._plan, arrived, values.get(RANDOM), self._known, here=here, there=self._there)
        args, kwargs = pytree.tree_unflatten(self._inputs(arrived, call, here), self._tree)
        with self._buffers_of_others(), follower.intercepting(self._intercepted):
            try:
                output, is_done = self._model(*args, **kwargs), False
            except _Finished:
                output, is_done = None, True
        if is_done:
            return follower.given_outputs()
        follower.check_end()
        return {OUTPUT: self._withhold_parts(output)}

    @contextlib.contextmanager
    def _buffers_of_others(self) -> Iterator[None]:
        """Where the model's code puts a new tensor for a buffer, other stages keep the old one."""
        before = [(place, dict(place)) for module in self._intercepted.values() if (place := module._buffers)]
        yield
        for place, old in before:
            place.update({name: old[name] for name, new in place.items() if isinstance(new, Absent)})

    def _lay_out_arrived(self, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        if self._plan.stage and value.layout is not None:
            tensor = Arriving.apply(tensor, value.layout)
        return tensor.clone() if value in self._plan.copies else tensor

    def _inputs(self, arrived: Mapping[Value, Any], call: ModelCall | None, here: Any) -> list[Any]:
        """The leaves of the model's inputs: what arrived, and else what only says its shape."""
        leaves = self._leaves if call is None else pytree.tree_leaves((call.args, dict(call.kwargs)))
        by_name = {value.name: tensor for value, tensor in arrived.items()}
        return [
            by_name.get(f"input.{n}", leaf)
            if not isinstance(leaf, torch.Tensor) or f"input.{n}" in by_name
            else absent(Like(shape=tuple(leaf.shape), dtype=leaf.dtype, requires_grad=leaf.requires_grad), device=here)
            for n, leaf in enumerate(leaves)
        ]

    def _withhold_parts(self, output: Any) -> Any:
        """The output, but for objects that every stage filled in part."""
        top = self._plan.events[0]
        if self._plan.stage == 0 or OPAQUE not in top.outputs:
            return output
        leaves, tree = pytree.tree_flatten(output)
        kept = [
            leaf if isinstance(leaf, torch.Tensor) or known is not OPAQUE else Withheld(type(leaf).__name__)
            for leaf, known in zip(leaves, top.outputs, strict=True)
        ]
        return pytree.tree_unflatten(kept, tree)


class Withheld:
    """In a model's output, an object that several stages filled in part: reading it is refused.

    >>> bool(Withheld("DynamicCache"))
    True
    """

    def __init__(self, kind: str) -> None:
        vars(self)["kind"] = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TechniqueRefused(
            f"a model's output must be tensors, in tuples, lists, dicts or registered classes, where the model is cut; "
            f"the loss reads {name!r} of a {vars(self)['kind']}, which several stages filled. Do not return it "
            f"(for a cache: use_cache=False)."
        )


class _Finished(BaseException):
    """A stage is done. No Exception, so that no model's `except Exception` takes it."""


class _Follower(Interceptor):
    def __init__(
        self,
        plan: ReplayPlan,
        arrived: dict[Value, Any],
        random: torch.Tensor | None,
        known: dict[Any, list[Any]],
        *,
        here: Any,
        there: Any,
    ) -> None:
        super().__init__()
        self._plan, self._values, self._random, self._known = plan, arrived, random, known
        self._here, self._there = here, there
        self._position = 0

    def on_call(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the call, pass over it, or go inside."""
        event = self._next()
        if event is None or event.what is not module:
            raise self._stray_error(f"calls {path!r}", event)
        self._begin(event)
        step = self._plan.steps[event.number]
        if step is ReplayStep.INSIDE:
            self._position += 1
            output = self.call_within(module, args, kwargs)
            if self._position != event.end:
                raise self._stray_error(f"leaves {event.name!r}", self._next())
            return output
        if step is ReplayStep.PASS:
            return _run_hooks(module, args, kwargs, self._pass(event, args, kwargs))
        output = self.natively(module, args, kwargs)
        self._note_end(event, output)
        return output

    def on_operation(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run the operation or pass over it, if it is an event."""
        event = self._next()
        if event is None or event.module is not None or event.what != function:
            output = self.execute(function, args, kwargs)
            if isinstance(output, torch.Tensor):
                raise self._stray_error(f"does {getattr(function, '__name__', function)!r}", event)
            return output
        self._begin(event)
        if self._plan.steps[event.number] is ReplayStep.PASS:
            return self._pass(event, args, kwargs)
        output = self.execute(function, args, kwargs)
        self._note_end(event, output)
        return output

    def given_outputs(self) -> dict[str, Any]:
        """The outputs of this stage by name."""
        found = {name: self._values[value] for name, value in self._plan.gives.items()}
        for name, value in self._plan.gives.items():
            if value in self._plan.gradients and found[name].requires_grad:
                found[name] = Leaving.apply(found[name], self._plan.gradients[value])
        if self._plan.gives_random:
            found[RANDOM] = generator_states()
        return found

    def check_end(self) -> None:
        """Raise an error unless the model's code came to its end at the last event."""
        if self._position != len(self._plan.events):
            raise self._stray_error("ends", self._next())

    def _next(self) -> TraceEvent | None:
        return self._plan.events[self._position] if self._position < len(self._plan.events) else None

    def _begin(self, event: TraceEvent) -> None:
        # Before anything is entered that earlier stages did not enter: modules may seed the generators on entry.
        if self._random is not None and event.number > self._plan.before:
            set_generator_states(self._random.cpu())
            self._random = None

    def _note_end(self, event: TraceEvent, output: Any) -> None:
        self._position = event.end
        kept = self._plan.keeps.get(event.number)
        if kept:
            leaves = pytree.tree_leaves(output)
            self._values.update({value: leaves[place] for place, value in kept})
        if event.end > self._plan.last and not self._plan.is_last:
            raise _Finished

    def _pass(self, event: TraceEvent, args: Any, kwargs: Any) -> Any:
        for module in self._plan.counted.get(event.number, ()):
            count_call(module)
        leaves = pytree.tree_leaves((args, kwargs))
        key = (event.number, self._here, signature(leaves))
        if key not in self._known:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._shapes(event, leaves, args, kwargs)
        tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())
        self._position = event.end
        found = [
            tensors[known.place] if isinstance(known, Same) else self._check_arrival(event, known, shape)
            for known, shape in zip(event.outputs, self._known[key], strict=True)
        ]
        return pytree.tree_unflatten(found, event.tree)

    def _check_arrival(self, event: TraceEvent, known: Any, shape: Any) -> Any:
        tensor = self._values.get(known) if isinstance(known, Value) else None
        if tensor is None:
            return shape
        if tensor.shape != shape.shape:
            raise ValueError(
                f"what {event} gave must have the shape {tuple(shape.shape)} for inputs of the sizes known here; "
                f"{tuple(tensor.shape)} arrived. Where sizes vary by step, give each piece the call: "
                f"piece(values, call=call)."
            )
        return tensor

    def _shapes(self, event: TraceEvent, leaves: list[Any], args: Any, kwargs: Any) -> list[Any]:
        if signature(leaves) == event.inputs:
            return [
                absent(leaf.history[0][1], device=self._here if leaf.device == self._there else leaf.device)
                if isinstance(leaf, Value)
                else leaf
                for leaf in event.outputs
            ]
        try:
            found = self.execute(shapes, (event.what, args, kwargs), {"here": self._here, "there": self._there})
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            # What arrived has a shape; only of what is absent it would have to be known.
            found = [self._values.get(leaf) if isinstance(leaf, Value) else leaf for leaf in event.outputs]
            if any(leaf is None and isinstance(known, Value) for leaf, known in zip(found, event.outputs, strict=True)):
                raise TechniqueRefused(
                    f"shapes of values must not depend on numbers where sizes vary by step; {event} decides by "
                    f"{operation_name(error.func)!r}. Use batches of one size."
                ) from error
        if len(found) != len(event.outputs):
            raise self._stray_error(f"gives {len(found)} values", event)
        return list(found)

    def _stray_error(self, what: str, event: TraceEvent | None) -> TechniqueRefused:
        return TechniqueRefused(
            f"a model that is cut must do the same operations at every call; this call {what} where the example call "
            f"had {event if event is not None else 'ended'}. Keep decisions that differ by batch inside one module."
        )


def _run_hooks(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """What a module that was passed over gives, after its forward hooks: these may gather what modules give."""
    for number, hook in module._forward_hooks.items():
        if number in module._forward_hooks_with_kwargs:
            found = hook(module, args, kwargs, output)
        else:
            found = hook(module, args, output)
        output = output if found is None else found
    return output
