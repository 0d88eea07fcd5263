"""Optimizers over a stack: one update for all members, each with numbers of its own.

A slab holds a member a row; what an optimizer reads from a member's parameter group becomes columns that are spread
over its row. Numbers are worked out on the host in double precision, as torch's optimizers do, and go to the device
in one small copy a step, so that schedules and counts of steps cost no synchronisation.
"""

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.train.numeric.coded_optimizers import CodedSteps

Group = Mapping[str, Any]


class Rule(abc.ABC):
    """How one kind of optimizer updates."""

    slots: tuple[str, ...] = ()
    """What it keeps for each element of a parameter."""
    width: int
    """How many numbers it wants for each member."""

    @abc.abstractmethod
    def numbers(self, group: Group, steps: int) -> list[float]:
        """What the next step takes from a member's group, after so many steps."""

    @abc.abstractmethod
    def apply(
        self, flat: torch.Tensor, gradient: torch.Tensor, slots: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor]
    ) -> None:
        """Update `flat` and `slots` in place; all are members × elements, each number members × 1."""

    @abc.abstractmethod
    def state(self, group: Group, steps: int, slots: Sequence[torch.Tensor], parameter: torch.Tensor) -> dict[str, Any]:
        """A parameter's state as torch's own optimizer has it after so many steps."""

    @abc.abstractmethod
    def steps(self, state: Mapping[str, Any]) -> int:
        """How many steps a parameter's state has seen."""


class Adam(Rule):
    """torch's Adam and AdamW. Kingma and Ba 2015, algorithm 1; with decay apart, Loshchilov and Hutter 2019."""

    slots = ("exp_avg", "exp_avg_sq")
    width = 6

    def __init__(self, *, decoupled: bool) -> None:
        self._decoupled = decoupled

    def numbers(self, group: Group, steps: int) -> list[float]:
        """Decay, the two rates of forgetting, the size of the step, the second moment's correction, epsilon."""
        rate, decay = float(group["lr"]), float(group["weight_decay"])
        first, second = (float(beta) for beta in group["betas"])
        count = steps + 1
        size = rate / (1 - first**count)
        correction = math.sqrt(1 - second**count)
        kept = 1 - rate * decay if self._decoupled else decay
        return [kept, 1 - first, 1 - second, size, correction, float(group["eps"])]

    def apply(
        self, flat: torch.Tensor, gradient: torch.Tensor, slots: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor]
    ) -> None:
        """Take one step of Adam for all members."""
        decay, new_first, new_second, size, correction, epsilon = numbers
        first, second = slots
        if self._decoupled:
            flat.mul_(decay)
        else:
            gradient = gradient + flat * decay
        first.lerp_(gradient, new_first)
        second.lerp_(gradient * gradient, new_second)
        flat.sub_(first / second.sqrt().div_(correction).add_(epsilon) * size)

    def state(self, group: Group, steps: int, slots: Sequence[torch.Tensor], parameter: torch.Tensor) -> dict[str, Any]:
        """The count of steps and both moments; nothing before the first step."""
        if not steps:
            return {}
        on_device = group.get("capturable") or group.get("fused")
        count = torch.tensor(float(steps), device=parameter.device if on_device else "cpu")
        return {"step": count, **dict(zip(self.slots, slots, strict=True))}

    def steps(self, state: Mapping[str, Any]) -> int:
        """How many steps the state has counted."""
        return int(state["step"]) if state else 0


class Sgd(Rule):
    """torch's SGD, with momentum, damped or not, Nesterov's or not."""

    width = 6

    def __init__(self, *, momentum: bool) -> None:
        self.slots = ("momentum_buffer",) if momentum else ()

    def numbers(self, group: Group, steps: int) -> list[float]:
        """Rate, decay, what the buffer keeps and takes of the gradient, the step's parts of gradient and buffer."""
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        is_first = not steps or not momentum  # the buffer begins as the gradient
        parts = [1.0, 0.0] if not momentum else [1.0, momentum] if group["nesterov"] else [0.0, 1.0]
        kept = [0.0, 1.0] if is_first else [momentum, 1 - dampening]
        return [float(group["lr"]), float(group["weight_decay"]), *kept, *parts]

    def apply(
        self, flat: torch.Tensor, gradient: torch.Tensor, slots: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor]
    ) -> None:
        """Take one step of SGD for all members."""
        rate, decay, kept, taken, of_gradient, of_buffer = numbers
        gradient = gradient + flat * decay
        if slots:
            (buffer,) = slots
            buffer.mul_(kept).add_(gradient * taken)
            gradient = gradient * of_gradient + buffer * of_buffer
        flat.sub_(gradient * rate)

    def state(self, group: Group, steps: int, slots: Sequence[torch.Tensor], parameter: torch.Tensor) -> dict[str, Any]:
        """The momentum's buffer; nothing before the first step or without momentum."""
        return {"momentum_buffer": slots[0]} if steps and group["momentum"] else {}

    def steps(self, state: Mapping[str, Any]) -> int:
        """1 where there has been a step, else 0: SGD keeps no count."""
        return int(state.get("momentum_buffer") is not None)


def rule_for(optimizers: Sequence[torch.optim.Optimizer]) -> Rule | None:
    """The rule of optimizers of one kind; None where each member's takes its steps by itself, as those do whose moments
    are in fewer bits: blocks and chances are a parameter's own.

    >>> rule_for([torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)]).slots
    ('momentum_buffer',)
    """
    kind = type(optimizers[0])
    if issubclass(kind, CodedSteps):
        return None
    if kind is torch.optim.SGD:
        return Sgd(momentum=any(group["momentum"] for each in optimizers for group in each.param_groups))
    assert kind in KINDS
    return Adam(decoupled=kind is torch.optim.AdamW)


KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
# What changes the formulas above; the rest of a group is numbers, or how torch computes the same.
_FLAGS = ("amsgrad", "maximize", "differentiable")


def refusal(optimizer: Any) -> str | None:
    """Why this optimizer's steps cannot be taken in a stack, or None where they can.

    >>> refusal(torch.optim.RMSprop([torch.zeros(1)]))
    'the optimizer must be one of SGD, Adam, AdamW; it is RMSprop'
    """
    if type(optimizer) not in KINDS and not isinstance(optimizer, CodedSteps):
        names = ", ".join(kind.__name__ for kind in KINDS)
        return f"the optimizer must be one of {names}; it is {type(optimizer).__name__}"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the optimizer must have no hooks around its steps; it has"
    for group in optimizer.param_groups:
        if flag := next((flag for flag in _FLAGS if group.get(flag)), None):
            return f"the optimizer must be plain; it has {flag}=True"
        if type(optimizer) is torch.optim.Adam and group.get("decoupled_weight_decay"):
            return "Adam must not decay apart; it has decoupled_weight_decay=True, which AdamW is for"
    return None
