"""Activations that are computed again in backward instead of being kept, for a model that trains whole on its device.

No module is rewritten: the forward of each block is wrapped while the session lasts. Blocks are what models are built
from: the modules of a list, and runs of modules in a sequence, about as many runs as each is long. What is computed
again has the same bits, dropout included (`train/randomness.py`); in the first step the outputs are compared, before
anything is updated, and a block that comes out otherwise the second time, because it keeps something between its calls,
is refused.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from dovetail.train.loop import tensors_in
from dovetail.train.weights import Buffers, WeightWrites
from dovetail.vocabulary import ProgramError, TechniqueRefused


class ChangedInPlace(ProgramError):
    """What a block was given is not there any more to compute it again from."""


class Recomputed:
    """A model whose blocks keep only their inputs between forward and backward, until closed.

    Refuses a model in which it finds no blocks. `checking` is whether outputs are compared.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh())
    >>> recomputed = Recomputed(model)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> recomputed.close()
    """

    def __init__(self, model: nn.Module) -> None:
        self.checking = True
        self._release: list[Callable[[], None]] = []
        for module in _holders(model):
            if isinstance(module, nn.Sequential):
                self._wrap(module, self._forward_in_runs(list(module)))
            else:
                for block in module.children():
                    self._wrap(block, self._as_one(block))
        if not self._release:
            raise TechniqueRefused(
                "a model must hold its blocks in an nn.ModuleList or an nn.Sequential for their activations to be "
                "computed again; this one has neither."
            )

    def close(self) -> None:
        """Leave the model as it was."""
        for release in self._release:
            release()
        self._release = []

    def _wrap(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        before = vars(module).get("forward")
        vars(module)["forward"] = forward

        def release() -> None:
            if before is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = before

        self._release.append(release)

    def _as_one(self, block: nn.Module) -> Callable[..., Any]:
        own = block.forward

        def forward(*positional: Any, **named: Any) -> Any:
            if not torch.is_grad_enabled():
                return own(*positional, **named)
            return self._checkpoint(own, [block], positional, named)

        return forward

    def _forward_in_runs(self, modules: Sequence[nn.Module]) -> Callable[[Any], Any]:
        size = math.ceil(len(modules) / max(2, round(math.sqrt(len(modules)))))
        runs = [modules[at : at + size] for at in range(0, len(modules), size)]

        def forward(value: Any) -> Any:
            for number, run in enumerate(runs):
                # Backward begins with the last: what it would compute again is still there.
                keeps = number == len(runs) - 1 or not torch.is_grad_enabled()
                value = _through(run)(value) if keeps else self._checkpoint(_through(run), run, (value,), {})
            return value

        return forward

    def _checkpoint(
        self, own: Callable[..., Any], modules: Iterable[nn.Module], positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        run = refuse_changed_inputs(keep_buffers_once(own, modules), positional)
        if self.checking:
            run = _refuse_writes(run, list(modules))
        if not self.checking:
            return checkpoint(run, *positional, use_reentrant=False, **named)
        with set_checkpoint_early_stop(False):  # or the outputs would not be computed
            return checkpoint(_refuse_other_outputs(run), *positional, use_reentrant=False, **named)


def refuse_changed_inputs(forward: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """A forward that refuses to run again on inputs that were changed in place since."""
    seen = [(value, value._version) for value in inputs if isinstance(value, torch.Tensor)]

    def run(*positional: Any, **named: Any) -> Any:
        if any(value._version != version for value, version in seen):
            raise ChangedInPlace(
                "what a recomputed module was given must stay as it was until backward; an input was changed in place. "
                "Write x = x + y instead of x += y, or do without recomputation."
            )
        return forward(*positional, **named)

    return run if seen else forward


def _refuse_writes(forward: Callable[..., Any], modules: Iterable[nn.Module]) -> Callable[..., Any]:
    """A forward that refuses to change these modules' weights: it would do so again when computed again."""

    def run(*positional: Any, **named: Any) -> Any:
        before = [WeightWrites(module) for module in modules]
        found = forward(*positional, **named)
        if changed := [name for each in before for name in each.changed_names()]:
            raise ChangedInPlace(
                f"a recomputed module must leave its weights as they are in forward; it writes {changed[0]!r}. Do "
                f"without recomputation."
            )
        return found

    return run


def keep_buffers_once(forward: Callable[..., Any], modules: Iterable[nn.Module]) -> Callable[..., Any]:
    """A forward whose later runs begin with these modules' buffers as the first did, and leave them alone: running
    means must not count a batch twice."""
    inside = [each for module in modules for each in module.modules()]
    if not any(buffer is not None for each in inside for buffer in each._buffers.values()):
        return forward
    first: list[Buffers] = []

    def run(*positional: Any, **named: Any) -> Any:
        now = Buffers(inside)
        if not first:
            first.append(now)
            return forward(*positional, **named)
        first[0].put_back()
        try:
            return forward(*positional, **named)
        finally:
            now.put_back()

    return run


def _holders(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost lists and sequences of modules."""
    children = list(module.children())
    if (isinstance(module, nn.ModuleList) and children) or (type(module) is nn.Sequential and len(children) > 1):
        yield module
    else:
        for child in children:
            yield from _holders(child)


def _through(modules: Sequence[nn.Module]) -> Callable[[Any], Any]:
    def forward(value: Any) -> Any:
        for module in modules:
            value = module(value)
        return value

    return forward


def _refuse_other_outputs(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that refuses to give something else the second time. One number for each tensor is kept, no copy."""
    first: list[list[torch.Tensor]] = []

    def run(*positional: Any, **named: Any) -> Any:
        found = forward(*positional, **named)
        digests = [torch.hash_tensor(tensor.detach()) for tensor in tensors_in(found)]
        if not first:
            first.append(digests)
        elif len(digests) != len(first[0]) or not all(map(torch.equal, digests, first[0])):
            raise TechniqueRefused(
                "a block must give the same when it is computed again; one of this model gives something else, so it "
                "keeps something between its calls (a cache, a count). Do without that while training."
            )
        return found

    return run
