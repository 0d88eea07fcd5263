"""The technique `replicate`: one task whole on each of several devices, each with a part of every batch's rows.

torch's DistributedDataParallel, which averages gradients over the ranks while backward still computes.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dovetail.train.base import NO_KNOBS, Knobs, Members, SessionMember, TrainingSession
from dovetail.train.compressed_gradients import EXACT_STEPS, CompressedGradients, bucket_arguments, exchange_of
from dovetail.train.ranked_session import share_state
from dovetail.train.ranks import RankedTechnique, Ranks
from dovetail.train.rowwise_session import RowwiseSession, WholeForward, refuse_rows
from dovetail.train.state import TrainingState, capture, restore


class Replicate(RankedTechnique):
    """One task, a copy on each device."""

    name = "replicate"
    exactness = (
        "equal to resident up to the order of sums in the mean over a batch's rows (losses within 1e-4 over a hundred "
        "steps in fp32), dropout included; bit-equal to itself at a given number of ranks"
    )

    def refuse(self, members: Members) -> str | None:
        """What depends on a whole batch, and what shows only in the first step, is refused there."""
        if reason := refuse_rows(members, name=self.name):
            return reason
        if members[0].training.precision == "bf16-pure":
            return "gradients of bf16 weights would be rounded once more as they are averaged; use shard"
        if not any(parameter.requires_grad for parameter in members[0].training.model.parameters()):
            return "no parameter is trained, so there is nothing to average"
        return None

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """This rank's session at step 0; rank 0's weights are everybody's."""
        self.check(members)
        exchange = exchange_of(knobs.get("approximate", ""))
        return ReplicateSession(members[0], device=device, threads=threads, ranks=self.company(), exchange=exchange)


REPLICATE = Replicate()

# Buffers that would differ are refused, so none need be sent round. torch 2.11 has another name for that.
_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
_KEEP_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False
}


class ReplicateSession(RowwiseSession):
    """A whole copy, kept equal to the others by equal gradients. Evaluating and saving are rank 0's alone, unless each
    rank remembers something of its own for the next exchange of gradients."""

    def __init__(
        self, member: SessionMember, *, device: torch.device, threads: int, ranks: Ranks, exchange: str = ""
    ) -> None:
        model = member.training.model.to(device)
        super().__init__(member, device=device, threads=threads, ranks=ranks)
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._copies = DistributedDataParallel(
            WholeForward(model),
            # Rows may take different ways through a model. What none of them reached keeps no gradient, as on one
            # device; looking for it takes microseconds a layer.
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
            **_KEEP_BUFFERS,
            **bucket_arguments(exchange),
        )
        self._exchange: CompressedGradients | None = None
        if exchange:
            self._exchange = CompressedGradients(self._copies, exchange, seed=member.seed, ranks=ranks)

    @property
    def warmup_steps(self) -> int:
        """The steps before gradients are compressed."""
        return EXACT_STEPS if self._remembers is not None else 0

    @property
    def _remembers(self) -> CompressedGradients | None:
        return self._exchange if self._exchange is not None and self._exchange.remembers else None

    def state(self, member: int = 0) -> TrainingState:
        """The live tensors under their canonical names."""
        found = capture(self._training, step=self._step, feed=self._cursor.state(), random=self._random.state())
        if self._remembers is None:
            return found
        with self._together("state"):
            return self._remembers.add_to(found, self._ranks)

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from the state that rank 0 has."""
        with self._together("load"):
            state = share_state(state, self._ranks, keep=lambda name, tensor: tensor)
            feed, random = restore(self._training, state)
            self._cursor.restore(feed)
            self._random.restore(random)
            if self._remembers is not None:
                self._remembers.load(state, self._ranks, device=self._device)
            self._step = state.step

    def _run(self, action: Callable[..., Any], *arguments: Any) -> Any:
        return self._copies(action, *arguments)

    def _gathering(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self._copies.no_sync()

    def _parameters(self) -> list[nn.Parameter]:
        return self._trained
