"""The approximations `gradients-bf16` and `gradients-lowrank`: copies that exchange less than their gradients.

`gradients-bf16` rounds each rank's gradient to bf16, divides it by the number of ranks, and sums in bf16. With
`gradients-lowrank` (PowerSGD, Vogels et al. 2019) a matrix M of a rank's gradient, to which is added what earlier steps
left out, is exchanged as its projection on a space of few dimensions: P = mean(M) Q, made orthonormal, then
Q = mean(Mᵀ) P, and P Qᵀ is everybody's gradient; M − P Qᵀ is what this rank adds at the next step, and Q is where that
starts. Vectors, and matrices that it would not halve, are exchanged whole. Both are torch's own; what is ours is that a
training goes on from its checkpoint bit by bit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dovetail.train.ranks import Ranks
from dovetail.train.state import TrainingState, pack, unpack

ROUNDED, LOWRANK = "gradients-bf16", "gradients-lowrank"
# Rank 4 is the larger of the two that the paper reports parity with.
DIMENSIONS = 4
# torch compresses from the third step on, when its buckets are sure to stay what they are.
EXACT_STEPS = 2
# Collectives of several buckets may meet in another order on another rank where gloo carries them.
ONE_BUCKET_MIB = 1 << 20
_PLACE = "gradients"


def exchange_of(approximate: str) -> str:
    """How gradients are exchanged under these approximations; empty: exactly.

    >>> exchange_of("gradients-bf16+state-8bit"), exchange_of("")
    ('gradients-bf16', '')
    """
    return next((name for name in (ROUNDED, LOWRANK) if name in approximate.split("+")), "")


def bucket_arguments(way: str) -> dict[str, Any]:
    """What DistributedDataParallel must be told for gradients that are exchanged so.

    >>> bucket_arguments("gradients-bf16")
    {}
    """
    return {"bucket_cap_mb": ONE_BUCKET_MIB} if way == LOWRANK else {}


class CompressedGradients:
    """How one rank's copy exchanges its gradients, and what it must remember from step to step."""

    def __init__(self, copies: DistributedDataParallel, way: str, *, seed: int, ranks: Ranks) -> None:
        self._state: PowerSGDState | None = None
        if way == ROUNDED:
            copies.register_comm_hook(None, _exchange_rounded)
            return
        self._state = PowerSGDState(
            # Its messages follow one another from threads of the group's own: among those that the main thread sends,
            # their order would differ from rank to rank.
            process_group=ranks.channel(_PLACE),
            matrix_approximation_rank=DIMENSIONS,
            start_powerSGD_iter=EXACT_STEPS,
            random_seed=seed % 2**32,
        )
        copies.register_comm_hook(self._state, powerSGD_hook)

    @property
    def remembers(self) -> bool:
        """Whether there is anything to remember."""
        return self._state is not None

    def add_to(self, state: TrainingState, ranks: Ranks) -> TrainingState:
        """The state with what all ranks remember. Called by all; rank 0's is whole."""
        own = self._state
        assert own is not None
        tensors = dict(state.tensors)
        remembered: dict[str, Any] = {"steps": own.iter}
        if own.error_dict:
            left, right = own.p_memory_dict[0], own.q_memory_dict[0]
            remembered |= {"left": left.numel(), "right": right, "errors": _gather(own.error_dict[0], ranks)}
        values = {**state.values, _PLACE: pack(remembered, _PLACE, tensors)}
        return TrainingState(step=state.step, tensors=tensors, values=values, frozen=state.frozen)

    def load(self, state: TrainingState, ranks: Ranks, *, device: torch.device) -> None:
        """Go on from what was remembered. With another number of ranks each takes an equal share of what was left out:
        their mean, which is all that counts, stays."""
        own = self._state
        assert own is not None
        remembered: Mapping[str, Any] = unpack(state.values[_PLACE], state.tensors) if _PLACE in state.values else {}
        own.iter = remembered.get("steps", 0)
        for memory in (own.error_dict, own.p_memory_dict, own.q_memory_dict):
            memory.clear()
        if "errors" not in remembered:
            return
        errors = remembered["errors"]
        mine = errors[ranks.rank] if len(errors) == ranks.size else torch.stack(errors).mean(0)
        own.error_dict[0] = mine.to(device, copy=True)
        own.q_memory_dict[0] = remembered["right"].to(device, copy=True)
        own.p_memory_dict[0] = torch.empty(remembered["left"], device=device, dtype=mine.dtype)


def _exchange_rounded(
    state: Any,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]  # torch reads it
) -> torch.futures.Future[torch.Tensor]:
    # Under its own name torch refuses it wherever NCCL is not: gloo has summed bf16 since.
    return bf16_compress_hook(state, bucket)


def _gather(error: torch.Tensor, ranks: Ranks) -> list[torch.Tensor]:
    """Every rank's, on rank 0; nothing but its own on the others."""
    mine = error.detach().to("cpu")
    if not ranks.leads:
        distributed.send(mine, 0)
        return [mine]
    found = [mine]
    for other in range(1, ranks.size):
        found.append(torch.empty_like(mine))
        distributed.recv(found[-1], other)
    return found
