"""Inputs of recomputed segments, kept on the host between forward and backward.

They go down as soon as their segment has used them and come up one segment ahead of backward. The host's buffers are
taken in the first step and used again in every other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from dovetail.train.spill.host_memory import HostMemory
from dovetail.train.spill.lanes import Lanes, Mark

# Smaller ones are not worth a copy.
_LEAST_BYTES = 1 << 16


class _ParkedInput:
    """One tensor: on the device until its copy has landed, and again from when backward comes near."""

    def __init__(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        self._like = torch.empty_like(tensor, device="meta")
        self._device, self._trains = tensor.device, tensor.requires_grad
        self._there = buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self._tensor: torch.Tensor | None = tensor
        self._landed: Mark | None = None
        self._arrival: Mark | None = None

    def go_down(self, lanes: Lanes) -> None:
        """Begin to copy the input to the host, once forward has used it."""
        if self._tensor is not None and self._landed is None:
            self._landed = lanes.down(self._there, self._tensor.detach())

    def let_go(self) -> bool:
        """Give its device memory back if its copy has landed; whether it did."""
        if self._landed is not None and self._landed.query():
            self._tensor = None
        return self._tensor is None

    def come_up(self, lanes: Lanes) -> None:
        """Begin to copy the input back, since backward is near."""
        if self._tensor is None:
            self._tensor = torch.empty_like(self._like, device=self._device)
            self._arrival = lanes.up(self._tensor, self._there, after=[lanes.mark()])

    def tensor(self, lanes: Lanes) -> torch.Tensor:
        """The input on the device, ready to compute with."""
        self.come_up(lanes)
        assert self._tensor is not None
        if self._landed is None:
            return self._tensor  # forward, which needs the very tensor for its graph
        if self._arrival is not None:
            lanes.follow(self._arrival)
        return self._tensor.detach().requires_grad_(self._trains)


class ParkedInputs:
    """What one model has parked, in the order of forward."""

    def __init__(self, lanes: Lanes, memory: HostMemory, device: torch.device) -> None:
        self._lanes, self._memory, self._device = lanes, memory, device
        self._buffers: list[torch.Tensor] = []
        self._parked: list[_ParkedInput] = []

    @property
    def bytes(self) -> int:
        """What its buffers take on the host."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def begin(self) -> None:
        """Begin a microbatch: forget what the last one parked."""
        self._parked = []

    def checkpoint(self, forward: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """As torch's checkpoint, with the large inputs parked."""
        stand_ins = [self._park(value) if self._is_worth_it(value) else value for value in positional]
        generators = _Generators(self._device)

        def run(*values: Any) -> Any:
            mine = [value for value in values if isinstance(value, _ParkedInput)]
            with generators:
                found = forward(
                    *(value.tensor(self._lanes) if isinstance(value, _ParkedInput) else value for value in values),
                    **named,
                )
            self._after(mine)
            return found

        # It looks for devices among the inputs, and these are hidden from it: generators are our own business.
        return checkpoint(run, *stand_ins, use_reentrant=False, preserve_rng_state=False)

    def _after(self, mine: list[_ParkedInput]) -> None:
        if torch._C._current_graph_task_id() == -1:
            for parked in mine:
                parked.go_down(self._lanes)
            for parked in self._parked:
                parked.let_go()
            return
        for parked in mine:
            place = self._parked.index(parked)
            for earlier in self._parked[max(0, place - 1) : place]:
                earlier.let_go()
                earlier.come_up(self._lanes)
            del self._parked[place:]

    def _is_worth_it(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.nbytes >= _LEAST_BYTES and value.is_contiguous()

    def _park(self, tensor: torch.Tensor) -> _ParkedInput:
        place = len(self._parked)
        if place == len(self._buffers):
            self._buffers.append(self._memory.take(tensor.nbytes))
        elif self._buffers[place].nbytes < tensor.nbytes:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # copies of the last backward may still read it
            self._memory.give(self._buffers[place])
            self._buffers[place] = self._memory.take(tensor.nbytes)
        parked = _ParkedInput(tensor, self._buffers[place])
        self._parked.append(parked)
        return parked


class _Generators:
    """Within the second time and on, torch's generators stand as they stood the first time."""

    def __init__(self, device: torch.device) -> None:
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        self._generators = generators
        self._first = [generator.get_state() for generator in generators]
        self._is_first = True
        self._before: list[torch.Tensor] = []

    def __enter__(self) -> None:
        self._before = [generator.get_state() for generator in self._generators]
        if not self._is_first:
            self._set(self._first)

    def __exit__(self, *error: object) -> None:
        if not self._is_first:
            self._set(self._before)
        self._is_first = False

    def _set(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
