"""One member's modules and loss, run for several members at once with tensors that are the members' stacked."""

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dovetail.train.base import Training
from dovetail.train.fuse.attention_masks import AttentionMasks, RecordedAttention
from dovetail.train.fuse.dropout_masks import Draw, Masked, active_dropouts, prepare, replace
from dovetail.train.fuse.lowering import Lowering, casts
from dovetail.train.fuse.stacked_batches import Form, rebuild
from dovetail.train.weights import to_half

Tensors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackLayout:
    """Which of a model's tensors, by their first names, each member has for itself and which all have in common."""

    trained: tuple[str, ...]
    apart: tuple[str, ...]
    """Frozen parameters and buffers with a row for each member."""
    common: tuple[str, ...]
    """Frozen parameters and buffers that are the same in all members and never change: they are held once."""

    @property
    def stacked(self) -> tuple[str, ...]:
        """The names of the tensors that have a row for each member."""
        return self.trained + self.apart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outline:
    """What one microbatch of a form does, found without computing it."""

    draws: tuple[Draw, ...] = ()
    attends: bool = False
    lowered: bool = False
    """Whether some function must be called otherwise than vmap would."""
    loops: bool = False
    """Whether some function has no rule of vmap's, which then runs it member by member."""
    unused: frozenset[str] = frozenset()
    """Trained parameters that the loss does not depend on: they are left as they are."""


class FusedProgram:
    """The skeleton of a gang: a copy of the first member's modules, whose tensors are given with each call."""

    def __init__(self, trainings: Sequence[Training], *, device: torch.device) -> None:
        training = trainings[0]
        model, loss = training.model, training.loss
        assert loss is not None
        # Modules are copied, for dropouts are replaced; tensors are not.
        tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.skeleton = skeleton = copy.deepcopy(model, tensors)
        if not skeleton.training:  # a model fresh from a hub is in evaluation mode
            skeleton.train()
        self.masked: dict[str, Masked] = replace(skeleton, active_dropouts(each.model for each in trainings))
        self._attention = AttentionMasks(skeleton, device=device, allow=training.allow)
        self.precision, self.device = training.precision, device
        self._is_half = training.precision == "bf16-pure"
        if training.precision == "bf16":
            casts(device.type)  # asked now, while tensors have contents
        if self._is_half:
            skeleton.register_forward_pre_hook(to_half, with_kwargs=True)
        self._whole = _ModelWithLoss(skeleton, loss)
        self._parameters = {name for name, _ in model.named_parameters()}

    def trace_alone(
        self, tensors: Tensors, leaves: Sequence[torch.Tensor], form: Form
    ) -> tuple[list[Draw], dict[str, Any]]:
        """What one member's forward draws, given its tensors; and the tensors after it."""
        draws: list[Draw] = []
        self.prepare((), {})
        for module in self.masked.values():
            module.recording = draws
        named = self._add_prefix(self._to_half(tensors))
        self._attention.begin()
        with self.computing(None, attends=False), RecordedAttention(self._attention, draws):
            functional_call(self._whole, named, (rebuild(form, iter(leaves)),))
        return draws, named

    def __call__(
        self,
        stacked: Tensors,
        common: Tensors,
        masks: Tensors,
        leaves: Sequence[torch.Tensor],
        *,
        form: Form,
        outline: Outline,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The loss of each member, and its metrics: tensors with a row for each, or plain values that all share."""
        plain: dict[str, Any] = {}
        named = {**self._to_half(stacked), **masks}
        fixed = self._add_prefix(self._to_half(common))

        def one(own: Tensors, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            for module in self.masked.values():
                module.calls = 0
            self._attention.begin()
            found = functional_call(self._whole, {**fixed, **self._add_prefix(own)}, (rebuild(form, iter(leaves)),))
            loss, metrics = found if isinstance(found, tuple) else (found, {})
            tensors = {name: value for name, value in metrics.items() if isinstance(value, torch.Tensor)}
            plain.update((name, value) for name, value in metrics.items() if name not in tensors)
            return loss.reshape(()), {name: value.detach() for name, value in tensors.items()}

        losses, tensors = vmap(one, randomness="error")(named, list(leaves))
        return losses, {**plain, **tensors}

    @contextlib.contextmanager
    def computing(self, lowering: Lowering | None, *, attends: bool, loops: bool = False) -> Iterator[None]:
        """The context that forward runs in: autocast, or none."""
        with contextlib.ExitStack() as stack:
            if loops:  # said once, by the session that found it
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", message="There is a performance drop")
            if self.precision == "bf16":
                stack.enter_context(torch.autocast(self.device.type, dtype=torch.bfloat16))
            if attends and self.device.type == "cuda":  # see `lowering` on cuDNN
                chosen = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
                stack.enter_context(sdpa_kernel(chosen))
            if lowering is not None:
                stack.enter_context(lowering)
            yield

    def lowering(self, outline: Outline) -> Lowering | None:
        """The mode that a microbatch of this outline needs."""
        return self.make_lowering() if outline.lowered else None

    def make_lowering(self) -> Lowering:
        """The mode that any microbatch may need."""
        return Lowering(self.device, casting=self.precision == "bf16", masks=self._attention)

    def prepare(self, draws: Collection[Draw], scales: dict[str, float | None]) -> None:
        """Give the skeleton places for these masks, and begin to count calls."""
        prepare(self.masked, draws, scales)
        self._attention.prepare(draws)

    def _to_half(self, tensors: Tensors) -> Tensors:
        if not self._is_half:
            return tensors
        halves = self._parameters & tensors.keys()
        return {
            name: tensor.bfloat16() if name in halves and tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }

    @staticmethod
    def _add_prefix(tensors: Tensors) -> dict[str, torch.Tensor]:
        return {f"model.{name}": tensor for name, tensor in tensors.items()}


class _ModelWithLoss(nn.Module):
    """A model and its loss as one module, so that all that a loss does with a model sees the tensors given."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Any:
        return self._loss(self.model, batch)
