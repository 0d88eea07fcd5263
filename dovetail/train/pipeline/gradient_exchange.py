"""Gradients of weights that several ranks or stages have: summed in the order in which one device would sum them.

A stage with replicas computes each microbatch on one of them, and a tied parameter gets a part of each microbatch's
gradient from every stage that uses it. One device adds up these parts use by use, from the last one back, and then
microbatch by microbatch. So what later stages found of a tied parameter goes to the stage before that uses it, whose
backward goes on adding to it; the first such stage has the microbatch's sum. Sums of microbatches travel one by one,
while others compute, and all who hold the weights add them up alike. That takes more messages than a sum over ranks
would; only weights that are held several times pay for it.
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
class _GradientPart:
    """The names that one stage gives to the sum, and who needs them."""

    stage: int
    names: tuple[str, ...]
    needed_by: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Tie:
    """The names of which a later stage's part goes to an earlier one's backward."""

    early: int
    late: int
    names: tuple[str, ...]


class GradientExchange:
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
        self._parameters = {name: parameter for names in stages for name, parameter in names.items()}
        self._likes = {name: (p.shape, p.dtype) for names in stages for name, p in names.items()}
        self.holders = {
            name: sorted({r for s, names in enumerate(stages) if name in names for r in holders[s]})
            for name in self._likes
        }
        users = {name: [s for s, names in enumerate(stages) if name in names] for name in self._likes}
        self.shared = {name for name, using in users.items() if len(using) > 1}
        """What several stages use."""
        self.names = {n for n, held in self.holders.items() if rank in held and (n in self.shared or len(held) > 1)}
        """What this rank has and others, or other stages, give parts of."""
        self._parts = [
            self._part(stage, [n for n in names if users[n][0] == stage]) for stage, names in enumerate(stages)
        ]
        # From each stage that uses a tied parameter to the one before it.
        self._ties: list[_Tie] = []
        for late, names in enumerate(stages):
            before = {n: max(s for s in users[n] if s < late) for n in names if users[n][0] < late}
            for early in sorted(set(before.values())):
                self._ties.append(_Tie(early, late, tuple(n for n in before if before[n] == early)))
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget parts that were not summed up, here and under way. Called by all."""
        self._here: dict[tuple[int, int], Gradients] = {}
        self._tied: dict[tuple[_Tie, int], Gradients] = {}
        # One for each stage and tie: a rank with several stages does not hand in their parts in the order in which
        # others add them up.
        self._mails: dict[int | _Tie, Mail] = {
            part.stage: self._mail(f"gradients {part.stage}") for part in self._parts if len(part.needed_by) > 1
        }
        self._mails |= {tie: self._mail(f"tied {tie.early} {tie.late}") for tie in self._ties}

    def _mail(self, name: str) -> Mail:
        return Mail(self._ranks, device=self._device, name=name)

    def _part(self, stage: int, names: Sequence[str]) -> _GradientPart:
        several = tuple(n for n in names if n in self.shared or len(self._stage_holders[stage]) > 1)
        return _GradientPart(stage, several, tuple(sorted({r for n in several for r in self.holders[n]})))

    def take_from_later(self, stage: int, microbatch: int) -> dict[nn.Parameter, torch.Tensor]:
        """What later stages found of a microbatch's gradients of tied parameters: more roots of this one's backward."""
        found: Gradients = {}
        for tie in self._ties:
            if tie.early == stage:
                source = self._holder(tie.late, microbatch)
                if source == self._rank:
                    found |= self._tied.pop((tie, microbatch))
                else:
                    found |= self._take_gradients(self._mails[tie], source, tie.names)
        return {self._parameters[name]: gradient for name, gradient in found.items()}

    def send_to_earlier(self, stage: int, microbatch: int, found: Gradients) -> None:
        """Send what the earlier stages' backward goes on with."""
        for tie in self._ties:
            if tie.late == stage:
                mine = {name: found[name] for name in tie.names if name in found}
                rank = self._holder(tie.early, microbatch)
                if rank == self._rank:
                    self._tied[tie, microbatch] = mine
                else:
                    self._mails[tie].post(rank, self._flat(tie.names, mine), mark=("part", microbatch))

    def hand_in(self, stage: int, microbatch: int, found: Gradients) -> None:
        """This rank's part of a microbatch's gradients: kept, and sent to all others who hold the weights."""
        part = self._parts[stage]
        if not part.names:
            return
        mine = {name: found[name] for name in part.names if name in found}
        self._here[stage, microbatch] = mine
        others = [rank for rank in part.needed_by if rank != self._rank]
        flat = self._flat(part.names, mine) if others else None
        for rank in others:
            assert flat is not None
            self._mails[stage].post(rank, flat, mark=("part", microbatch))

    def total(self, microbatches: Sequence[int]) -> Gradients:
        """The sums over these microbatches of all that this rank has and others give parts of."""
        sums: Gradients = {}
        if not self.names:
            return sums
        for microbatch in microbatches:
            for part in self._parts:
                if self._rank in part.needed_by:
                    _add(sums, self._receive(part, microbatch))
        # Whoever handed in parts of this update has made the one before, and taken what that needed.
        for mail in self._mails.values():
            for rank in {holder for name in self.names for holder in self.holders[name]}:
                mail.forget(rank, "part", microbatches[0] - 1)
        return sums

    def settle(self) -> None:
        """Wait until all parts have been taken. Called after `total`, by all."""
        for mail in self._mails.values():
            mail.settle()

    def _holder(self, stage: int, microbatch: int) -> int:
        holders = self._stage_holders[stage]
        return holders[microbatch % len(holders)]

    def _receive(self, part: _GradientPart, microbatch: int) -> Gradients:
        source = self._holder(part.stage, microbatch)
        if source == self._rank:
            return self._here.pop((part.stage, microbatch))
        return self._take_gradients(self._mails[part.stage], source, part.names)

    def _take_gradients(self, mail: Mail, source: int, names: Sequence[str]) -> Gradients:
        shapes = [self._likes[name][0] for name in names]
        size = len(names) + sum(shape.numel() for shape in shapes)
        flat = torch.empty(size, dtype=self._dtype(names), device=self._device)
        mail.take(source, flat)
        # First a number for each name, whether it is there; then all gradients, zeros where there are none.
        found, start, there = {}, len(names), flat[: len(names)].tolist()
        for name, is_there, shape in zip(names, there, shapes, strict=True):
            if is_there and name in self.names:
                found[name] = flat[start : start + shape.numel()].view(shape).to(self._likes[name][1])
            start += shape.numel()
        return found

    def _flat(self, names: Sequence[str], mine: Gradients) -> torch.Tensor:
        there = torch.tensor([float(name in mine) for name in names], device=self._device)
        parts = (mine[n] if n in mine else torch.zeros(self._likes[n][0], device=self._device) for n in names)
        return torch.cat([piece.reshape(-1).to(self._dtype(names)) for piece in (there, *parts)])

    def _dtype(self, names: Sequence[str]) -> torch.dtype:
        return functools.reduce(torch.promote_types, (self._likes[name][1] for name in names), torch.float32)


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
