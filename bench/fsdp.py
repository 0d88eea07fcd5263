"""FSDP2 with CPU offload on one device, as people use it today: what `spill` is measured against.

Blocks are sharded one by one, computed in bf16 and reduced in fp32; parameters, gradients and the state of a fused
AdamW live in (pinned) host memory. Runs on a CPU over gloo too, where it shows that this code works and nothing else.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process alone; nothing outside the machine is asked."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")  # a machine without a network resolves no name of its own
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        store = torch.distributed.FileStore(f"{folder}/store", 1)
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


def shard(model: nn.Module, blocks: Iterable[nn.Module], *, device: torch.device, prefetch: int = 0) -> None:
    """Shard `model` in place. No one else may hold its parameters: they would stay on the device, whole.

    What is in no block (embeddings, last norm, head) belongs to the root, which keeps it on the device from forward
    to backward; sharded apart, a head that is called for every chunk of tokens would be fetched for every chunk.
    """
    # A CPU without bf16 units multiplies bf16 matrices by a loop, a hundred times slower than fp32.
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    rule: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda"),
    }
    sharded = [fully_shard(block, **rule) for block in blocks]
    fully_shard(model, **rule)
    if prefetch:  # without it FSDP2 fetches one block ahead in backward, and in forward as far as Python runs ahead
        for number, block in enumerate(sharded):
            block.set_modules_to_forward_prefetch(sharded[number + 1 : number + 1 + prefetch])
            block.set_modules_to_backward_prefetch(sharded[max(0, number - prefetch) : number][::-1])


class Peer:
    """The training loop a person would write around a sharded model."""

    def __init__(
        self,
        model: nn.Module,
        *,
        batches: Iterable[torch.Tensor],
        loss: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None,
        device: torch.device,
    ) -> None:
        self._model, self._loss, self._optimizer = model, loss, optimizer
        self._feed = itertools.chain.from_iterable(itertools.repeat(batches))
        self._clip_norm, self._device = clip_norm, device

    def advance(self) -> list[torch.Tensor]:
        """One optimizer step; gives its loss."""
        loss = self._loss(self._model, next(self._feed).to(self._device, non_blocking=True))
        loss.backward()
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return [loss.detach()]
