"""Dropout in a stack: each member's masks drawn outside of it, by the calls and from the keys that a solo run has.

Which numbers a mask holds depends on the shape, strides and type of what is dropped, so these are recorded from one
member running alone (without computing: see `outline`) and not read off the stack, whose strides are others.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Sequence

import torch
from torch import nn

from dovetail.train.randomness import KeyedRandomness
from dovetail.vocabulary import TechniqueRefused

# A rate of dropout may differ in a gang: each member's masks are drawn with its own.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

AGAIN = "backward must not run forward again, as activation checkpointing does. Turn that off"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """One mask of a microbatch: the `call`-th of the module `name`, for what has this shape, strides and type. `rate`
    is that of attention which drops by itself, in a module that is no dropout."""

    name: str
    call: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    rate: float | None = None

    @property
    def key(self) -> str:
        """The name under which the fused program reads this mask."""
        return f"{self.name}.{'mask' if self.rate is None else 'dropped'}{self.call}".lstrip(".")


class Masked(nn.Module):
    """In a dropout's place: multiplies by the mask that it was given, or records what mask it would want."""

    def __init__(self, dropout: nn.Module, name: str) -> None:
        super().__init__()
        self.p, self.inplace = dropout.p, dropout.inplace  # for models that read them
        self.name = name
        self.calls = 0
        self.scale: float | None = None
        self.recording: list[Draw] | None = None
        self.train(dropout.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What this dropout leaves of `x`."""
        call, self.calls = self.calls, self.calls + 1
        if self.recording is not None:
            shape, stride = tuple(x.shape), tuple(x.stride())
            self.recording.append(Draw(name=self.name, call=call, shape=shape, stride=stride, dtype=x.dtype))
            return x * 1
        mask = self._buffers.get(f"mask{call}")
        if mask is None:  # more calls than forward makes alone
            raise TechniqueRefused(AGAIN)
        if self.scale is not None:  # as CUDA's own kernel has it: rounded once, after scaling
            return x * mask * self.scale
        return x.mul_(mask) if self.inplace else x * mask


def replace(skeleton: nn.Module, names: Container[str]) -> dict[str, Masked]:
    """Put a `Masked` in the place of each dropout of these names."""
    found: dict[nn.Module, Masked] = {}
    for name, module in list(skeleton.named_modules()):
        if name in names:
            found[module] = Masked(module, name)
    for parent in list(skeleton.modules()):
        for name, child in parent._modules.items():
            if child in found:
                parent._modules[name] = found[child]
    return {masked.name: masked for masked in found.values()}


def active_dropouts(models: Iterable[nn.Module]) -> set[str]:
    """The names of dropouts that drop in any of these models while it trains.

    >>> active_dropouts([nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.5))])
    {'1'}
    """
    return {
        name
        for model in models
        for name, module in model.named_modules()
        if type(module) in DROPOUTS and module.p and (module.training or not model.training)
    }


def prepare(masked: dict[str, Masked], draws: Iterable[Draw], scales: dict[str, float | None]) -> None:
    """Give the skeleton places for masks, and begin to count calls."""
    for module in masked.values():
        module.recording, module.calls = None, 0
    for draw in draws:
        if draw.rate is not None:
            continue
        module = masked[draw.name]
        module.scale = scales[draw.name]
        if f"mask{draw.call}" not in module._buffers:
            module.register_buffer(f"mask{draw.call}", torch.empty(0), persistent=False)


def dropouts_of(draws: Iterable[Draw]) -> set[str]:
    """The names of the dropout modules among those that draw."""
    return {draw.name for draw in draws if draw.rate is None}


class Masks:
    """Draws the masks of a microbatch for some members."""

    def __init__(self, models: Sequence[nn.Module], randoms: Sequence[KeyedRandomness], device: torch.device) -> None:
        self._modules = [dict(model.named_modules()) for model in models]
        self._randoms, self._device = randoms, device
        self._ones: dict[Draw, torch.Tensor] = {}

    def scales(self, names: Iterable[str]) -> dict[str, float | None]:
        """What a kept value is multiplied by besides its mask, where that is one number for all.

        CUDA's dropout scales in float32 and rounds once; the CPU's multiplies by a mask that was scaled and rounded.
        """
        found: dict[str, float | None] = {}
        for name in names:
            rates = {modules[name].p for modules in self._modules}
            is_one = self._device.type != "cpu" and len(rates) == 1 and max(rates) < 1
            found[name] = 1 / (1 - max(rates)) if is_one else None
        return found

    def draw(self, draws: Iterable[Draw], members: Sequence[int]) -> dict[str, torch.Tensor]:
        """The masks of these members, who have begun the microbatch, one above another."""
        draws = tuple(draws)
        scales = self.scales(dropouts_of(draws))
        found: dict[str, torch.Tensor] = {}
        for draw in draws:
            if draw.rate is not None:
                found[draw.key] = self._write_masks(draw, members, [draw.rate] * len(members))
                continue
            stacked = self._rows(draw, members)
            found[draw.key] = stacked if scales[draw.name] is None else stacked != 0
        return found

    def _rows(self, draw: Draw, members: Sequence[int]) -> torch.Tensor:
        if draw not in self._ones:
            size = 1 + sum((count - 1) * step for count, step in zip(draw.shape, draw.stride, strict=True))
            ones = torch.ones(max(1, size), dtype=draw.dtype, device=self._device)
            self._ones[draw] = ones.as_strided(draw.shape, draw.stride)
        modules = [self._modules[member][draw.name] for member in members]
        # A module whose draws are keyed is of a subclass of its own class.
        functional = next(_FUNCTIONAL[kind] for kind in type(modules[0]).__mro__ if kind in _FUNCTIONAL)
        ones, is_cpu = self._ones[draw], self._device.type == "cpu"
        if functional is nn.functional.dropout and is_cpu and ones.is_contiguous():
            return self._write_masks(draw, members, [module.p for module in modules])
        rows = []
        for member, module in zip(members, modules, strict=True):
            self._randoms[member].enter(draw.name, draw.call)
            rows.append(functional(ones, module.p, True))
        return torch.stack(rows)

    def _write_masks(self, draw: Draw, members: Sequence[int], rates: Sequence[float]) -> torch.Tensor:
        """The same as dropout on a CPU has it, written in place: half of what drawing takes was the calls around it."""
        rows = torch.empty((len(members), *draw.shape), dtype=draw.dtype, device=self._device)
        for row, member, rate in zip(rows.unbind(), members, rates, strict=True):
            if 0 < rate < 1 and row.numel():
                self._randoms[member].enter(draw.name, draw.call)
                row.bernoulli_(1 - rate).div_(1 - rate)
            else:
                row.fill_(0.0 if rate else 1.0)
        return rows


_FUNCTIONAL: dict[type, Callable[[torch.Tensor, float, bool], torch.Tensor]] = {
    nn.Dropout: nn.functional.dropout,
    nn.Dropout1d: nn.functional.dropout1d,
    nn.Dropout2d: nn.functional.dropout2d,
    nn.Dropout3d: nn.functional.dropout3d,
}
