"""Gradients of weights that several ranks or stages have: summed in the order in which one device would sum them.

A stage with replicas computes each microbatch on one of them, and a tied parameter gets a part of each microbatch's
gradient from every stage that uses it. One device adds the last stage's part to the earlier ones', and microbatch by
microbatch. So parts travel one by one, while others compute, and all who hold the weights add them up alike. That takes
more messages than a sum over ranks would; only weights that are held several times pay for it.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from dovetail.train.pipeline.mail import Mail
from dovetail.train.ranks import Ranks

Gradients = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The names that one stage gives to the sum, and who needs them."""

    stage: int
    names: tuple[str, ...]
    needed_by: tuple[int, ...]


class Exchange:
    """One rank's side. `stages` are the parameters' names by stage, for all stages of the model, trained ones only."""

    def __init__(
        self,
        holders: Sequence[Sequence[int]],
        stages: Sequence[Mapping[str, nn.Parameter]],
        *,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        rank = ranks.rank
        self._stage_holders, self._rank, self._ranks, self._device = holders, rank, ranks, device
        self._likes = {name: (p.shape, p.dtype) for names in stages for name, p in names.items()}
        self.holders = {
            name: sorted({r for s, names in enumerate(stages) if name in names for r in holders[s]})
            for name in self._likes
        }
        shared = {name for name in self.holders if sum(name in names for names in stages) > 1}
        self.names = {n for n, held in self.holders.items() if rank in held and (n in shared or len(held) > 1)}
        """What this rank has and others, or other stages, give parts of."""
        self._parts = [self._part(stage, tuple(names), shared) for stage, names in enumerate(stages)]
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget parts that were not summed up, here and under way. Called by all."""
        self._here: dict[tuple[int, int], Gradients] = {}
        self._mail = Mail(self._ranks, device=self._device, name="gradients")

    def _part(self, stage: int, names: Sequence[str], shared: set[str]) -> _Part:
        several = tuple(n for n in names if n in shared or len(self._stage_holders[stage]) > 1)
        return _Part(stage, several, tuple(sorted({r for n in several for r in self.holders[n]})))

    def hand_in(self, stage: int, microbatch: int, found: Gradients) -> None:
        """This rank's part of a microbatch's gradients: kept, and sent to all others who hold the weights."""
        part = self._parts[stage]
        if not part.names:
            return
        mine = {name: found[name] for name in part.names if name in found}
        self._here[stage, microbatch] = mine
        for rank in part.needed_by:
            if rank != self._rank:
                self._mail.post(rank, self._flat(part, mine), mark=("part", microbatch))

    def total(self, microbatches: Sequence[int]) -> Gradients:
        """The sums over these microbatches of all that this rank has and others give parts of."""
        sums: Gradients = {}
        if not self.names:
            return sums
        for microbatch in microbatches:
            each: Gradients = {}
            for part in reversed(self._parts):
                if self._rank in part.needed_by:
                    _add(each, self._found(part, microbatch))
            _add(sums, each)
        # Whoever handed in parts of this update has made the one before, and taken what that needed.
        for rank in {holder for name in self.names for holder in self.holders[name]}:
            self._mail.forget(rank, "part", microbatches[0] - 1)
        return sums

    def settle(self) -> None:
        """Wait until all parts have been taken. Called after `total`, by all."""
        self._mail.settle()

    def _found(self, part: _Part, microbatch: int) -> Gradients:
        holders = self._stage_holders[part.stage]
        source = holders[microbatch % len(holders)]
        if source == self._rank:
            return self._here.pop((part.stage, microbatch))
        shapes = [self._likes[name][0] for name in part.names]
        size = len(part.names) + sum(shape.numel() for shape in shapes)
        flat = torch.empty(size, dtype=self._dtype(part), device=self._device)
        self._mail.take(source, flat)
        # First a number for each name, whether it is there; then all gradients, zeros where there are none.
        found, start, there = {}, len(part.names), flat[: len(part.names)].tolist()
        for name, is_there, shape in zip(part.names, there, shapes, strict=True):
            if is_there and name in self.names:
                found[name] = flat[start : start + shape.numel()].view(shape).to(self._likes[name][1])
            start += shape.numel()
        return found

    def _flat(self, part: _Part, mine: Gradients) -> torch.Tensor:
        there = torch.tensor([float(name in mine) for name in part.names], device=self._device)
        zeros = (torch.zeros(self._likes[name][0], device=self._device) for name in part.names)
        pieces = [there, *(mine.get(name, zero).reshape(-1) for name, zero in zip(part.names, zeros, strict=True))]
        return torch.cat([piece.to(self._dtype(part)) for piece in pieces])

    def _dtype(self, part: _Part) -> torch.dtype:
        return functools.reduce(torch.promote_types, (self._likes[name][1] for name in part.names), torch.float32)


def _add(sums: Gradients, more: Gradients) -> None:
    for name, gradient in more.items():
        sums[name] = sums[name] + gradient if name in sums else gradient


def clip(
    parameters: Mapping[str, nn.Parameter], *, order: Sequence[str], counted: set[str], most: float, ranks: Ranks
) -> None:
    """Clip the gradients of `parameters` by the norm over all ranks, which is that of one device to the bit: norms of
    single gradients, in the model's `order`. This rank tells those of `counted`, each told by one. Called by all."""
    gradients = {name: parameters[name].grad for name in order if name in counted}
    found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    norms = torch.zeros(2, len(order), dtype=torch.float64)
    for name, norm in zip(found, torch._foreach_norm(list(found.values())) if found else (), strict=True):
        norms[:, order.index(name)] = torch.tensor([1.0, float(norm)])
    # Each has one that is not zero, so these sums are exact.
    there, told = ranks.sum(norms)
    dtype = next((gradient.dtype for gradient in found.values()), torch.float32)
    total = torch.linalg.vector_norm(told[there > 0].to(dtype))
    mine = [parameter for parameter in parameters.values() if parameter.grad is not None]
    if mine:
        nn.utils.clip_grads_with_norm_(mine, most, total.to(mine[0].device))
