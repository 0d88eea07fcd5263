"""Weights that stand in for a model's own while it computes.

The parameters that a program built are the masters: the optimizer steps them and checkpoints hold them. Where forward
and backward are to see something else (bf16 copies, or views of memory that comes and goes), stand-ins take the
masters' places in their modules. Knows modules; knows nothing of optimizers or devices.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dovetail.vocabulary import ProgramError

Site = tuple[nn.Module, str]

# What autocast computes in bf16: a weight that only these read may be there in bf16 and nothing changes by it.
_LOWERED = (
    nn.Linear,
    nn.Bilinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def sites(model: nn.Module) -> dict[nn.Parameter, list[Site]]:
    """Each parameter of a model with every place that holds it, in the order of modules.

    >>> model = nn.Linear(2, 1)
    >>> [[name for _, name in places] for places in sites(model).values()]
    [['weight'], ['bias']]
    """
    found: dict[nn.Parameter, list[Site]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, []).append((module, name))
    return found


def read_dtype(parameter: nn.Parameter, places: list[Site], precision: str) -> torch.dtype:
    """As what a parameter may lie on a device so that computing gives the same bits as with the parameter itself.

    >>> linear = nn.Linear(1, 1)
    >>> read_dtype(linear.weight, [(linear, "weight")], "bf16")
    torch.bfloat16
    """
    if not parameter.is_floating_point():
        return parameter.dtype
    if precision == "bf16-pure":
        return torch.bfloat16
    lowered = all(type(module) in _LOWERED for module, _ in places)
    return torch.bfloat16 if precision == "bf16" and lowered and parameter.dtype == torch.float32 else parameter.dtype


def find_hooked(model: nn.Module) -> str | None:
    """The name of a parameter with hooks on its gradient, if there is one: whoever computes with something else in its
    place would pass them by.

    >>> model = nn.Linear(2, 1)
    >>> handle = model.bias.register_hook(lambda gradient: gradient * 2)
    >>> find_hooked(model)
    'bias'
    """
    named = model.named_parameters()
    return next((n for n, p in named if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)), None)


class WeightWrites:
    """Which of a model's weights are written in place from here on, as averages are that forward keeps by itself.

    >>> model = nn.Linear(2, 1)
    >>> before = WeightWrites(model)
    >>> with torch.no_grad():
    ...     _ = model.bias.zero_()
    >>> before.changed_names()
    ['bias']
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen = [(name, parameter, parameter._version) for name, parameter in model.named_parameters()]

    def changed_names(self) -> list[str]:
        """The names of the weights written since this was made."""
        return [name for name, parameter, version in self._seen if parameter._version != version]


class StandIns:
    """Stand-ins in the places of their masters, from when it is made until `remove`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> master = model.weight
    >>> stand_ins = StandIns(model, {master: nn.Parameter(master.detach().bfloat16())})
    >>> with stand_ins.masters():
    ...     model.weight is master
    True
    >>> model.weight.dtype
    torch.bfloat16
    """

    def __init__(self, model: nn.Module, stand_ins: Mapping[nn.Parameter, nn.Parameter]) -> None:
        self._places = [
            (module._parameters, name, master, stand_ins[master])
            for master, places in sites(model).items()
            if master in stand_ins
            for module, name in places
        ]
        self._put()

    def remove(self) -> None:
        """Give the masters their places back. May be called twice."""
        for parameters, name, master, _ in self._places:
            parameters[name] = master

    @contextlib.contextmanager
    def masters(self) -> Iterator[None]:
        """Within, the model holds its masters."""
        self.remove()
        try:
            yield
        finally:
            self._put()

    def _put(self) -> None:
        for parameters, name, _, stand_in in self._places:
            parameters[name] = stand_in


class HalfWeights:
    """bf16 copies of all floating weights, for a model that computes in bf16 throughout.

    `collect` adds the copies' gradients to the masters', in float32; `refresh` rounds the masters into the copies.
    """

    def __init__(self, model: nn.Module) -> None:
        if (name := find_hooked(model)) is not None:
            raise ProgramError(
                f"a model that computes in bf16 throughout must have no hooks on its parameters; {name!r} has. Do what "
                f"they do in the loss, or use precision 'bf16'."
            )
        self._pairs = [
            (master, nn.Parameter(master.detach().bfloat16(), requires_grad=master.requires_grad))
            for master in sites(model)
            if master.is_floating_point()
        ]
        self.stand_ins = StandIns(model, dict(self._pairs))
        self._release = model.register_forward_pre_hook(to_half, with_kwargs=True).remove

    def collect(self) -> None:
        """Add the copies' gradients to the masters'. Called after each backward."""
        for master, copy in self._pairs:
            if copy.grad is not None:
                gradient, copy.grad = copy.grad.to(master.grad_dtype), None
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    def refresh(self) -> None:
        """Round the masters into the copies, which may be the same memory. Called after each step of the optimizer, and
        after loading."""
        with torch.no_grad():
            for master, copy in self._pairs:
                copy.copy_(master)

    def close(self) -> None:
        """Leave the model as it was."""
        self._release()
        self.stand_ins.remove()


def to_half(module: nn.Module, positional: Any, named: Any) -> Any:
    """A hook before a model's forward: floating inputs become bf16, as its weights are.

    >>> to_half(nn.Identity(), (torch.ones(1), 2), {})
    ((tensor([1.], dtype=torch.bfloat16), 2), {})
    """

    def half(value: Any) -> Any:
        return value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return tuple(map(half, positional)), {name: half(value) for name, value in named.items()}


class Buffers:
    """A copy of the buffers of some modules, to be put back later.

    >>> norm = nn.BatchNorm1d(1)
    >>> before = Buffers([norm])
    >>> _ = norm(torch.ones(2, 1))
    >>> before.put_back()
    >>> norm.running_mean
    tensor([0.])
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept = [
            (module._buffers, name, buffer, buffer.clone())
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def changed_names(self) -> list[str]:
        """The names, within their modules, of the buffers that have changed since."""
        return [n for place, n, old, value in self._kept if place[n] is not old or not torch.equal(old, value)]

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the buffers the values that they had; one that was replaced is the old one again."""
        for place, name, buffer, value in self._kept:
            place[name] = buffer
            # Expanded buffers cannot be written, and were not.
            if torch._debug_has_internal_overlap(buffer) != 1:
                buffer.copy_(value)
