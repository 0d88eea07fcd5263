"""A stage of an `nn.Sequential`, which needs nothing between its modules."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dovetail.train.cutting.model_calls import ModelCall
from dovetail.train.cutting.pieces import Like, Piece
from dovetail.train.cutting.replay_plan import ReplayPlan, ReplayStep
from dovetail.train.cutting.traced_piece import OUTPUT
from dovetail.train.randomness import count_call


class SequentialPiece(Piece):
    """A stage of an `nn.Sequential`: some of its modules, called one after another."""

    def __init__(
        self, model: nn.Module, plan: ReplayPlan, *, held: Mapping[str, torch.Tensor], likes: Mapping[str, Like]
    ) -> None:
        super().__init__(model, held)
        run = [plan.events[n].module for n, step in plan.steps.items() if step is ReplayStep.RUN]
        self._run = tuple(module for module in run if module is not None)
        self._counted = tuple(module for modules in plan.counted.values() for module in modules)
        ((name, value),) = plan.takes.items()
        self._is_copied = value in plan.copies
        self.takes, self.gives, self.likes = (name,), (OUTPUT,) if plan.is_last else tuple(plan.gives), likes

    @staticmethod
    def serves(model: nn.Module, plan: ReplayPlan) -> bool:
        """Whether a plan is one for such a piece: whole modules, and one tensor from each to the next."""
        is_sequential = getattr(type(model), "forward", None) is nn.Sequential.forward
        hooked = model._forward_hooks or model._forward_pre_hooks or model._backward_hooks or model._backward_pre_hooks
        steps = [step for n, step in plan.steps.items() if n]
        return (
            is_sequential
            and not hooked
            and ReplayStep.INSIDE not in steps
            and all(plan.events[n].parent is plan.events[0] for n in plan.steps if n)
            and all(plan.events[n].module is not None for n in plan.steps)
            and not plan.gradients
            and not any(value.layout for value in plan.takes.values())
            and len(plan.takes) == 1
            and (plan.is_last or len(plan.gives) == 1)
            and not plan.takes_random
            and not plan.gives_random
        )

    def forward(self, values: Mapping[str, Any], *, call: ModelCall | None = None) -> dict[str, Any]:
        """Call the modules of the stage one after another; gives its outputs by name."""
        x = values[self.takes[0]]
        if self._is_copied:
            x = x.clone()
        for module in self._counted:
            count_call(module)
        for module in self._run:
            x = module(x)
        return {self.gives[0]: x}
