"""Adam, AdamW and SGD whose moments or weights are kept in fewer bits: the slow true form, in plain torch.

An optimizer that its user has made becomes one of these where it is: schedulers, groups and hooks stay what they are.
Each operation below rounds once, in fp32, in this order, so that every device and every technique gives the same bits;
nothing is fused, which `alpha=` and `lerp_` would. docs/numeric.md has the recurrences.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from dovetail.feeds.keys import key
from dovetail.train.numeric.blockwise import BLOCK, count_blocks, decode, encode
from dovetail.train.numeric.stochastic import round_by_chance
from dovetail.vocabulary import TechniqueRefused

#: Tensors with fewer numbers stay in 32 bits, as published: they are biases and norms.
LEAST_NUMBERS = 4096
#: So many numbers are worked on at once: what stands between two operations is in fp32.
CHUNK = 1 << 22
#: What the chances of weights are keyed by, where those of a moment have its slot.
WEIGHT = "weight"

Slots = dict[str, Any]


class CodedSteps(Optimizer):
    """What the three have in common. Slots of a parameter are as torch's own have them, but for moments in 8 bits,
    whose scales are beside them; a slot `bits` says that they stay in 32, or are in bf16. Chances by which these, or
    weights that are in bf16, are rounded follow from the slot `key`."""

    moments: tuple[tuple[str, bool], ...]
    """Each moment's slot, and whether it has a sign."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        Optimizer.__setstate__(self, state)  # Adam's own reads what older versions have kept, in slots that have a step

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)
        self._opt_called = True  # schedulers ask
        return loss

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        """One step of one parameter, in one pass where there is a kernel for it."""
        slots = self.state[parameter]
        prepare_slots(slots, parameter, self.moments)
        slots["step"] += 1
        numbers = self.numbers(group, int(slots["step"]))
        weights, slopes = local(parameter).view(-1), local(gradient).reshape(-1)
        fast = fast_update(self, weights, slots) or self.update_plainly
        fast(weights, slopes, slots, numbers, first_place(parameter))

    def update_plainly(
        self, weights: torch.Tensor, slopes: torch.Tensor, slots: Slots, numbers: Mapping[str, float], first: int = 0
    ) -> None:
        """The same by plain torch, from weights and gradients in a row whose first is at this place of its parameter:
        what kernels must equal."""
        for start in range(0, weights.numel(), CHUNK):
            places = slice(start, start + CHUNK)
            moments = [_read(slots, slot, places, signed=signed) for slot, signed in self.moments]
            weight = weights[places].float()  # in fp32 these are the very same
            moved = self.move(weight, slopes[places].float(), moments, numbers)
            if weights.dtype == torch.bfloat16:
                weights[places] = round_by_chance(weight, key=key_of(slots, WEIGHT), start=first + places.start)
            for (slot, signed), moment in zip(self.moments, moved, strict=True):
                _write(slots, slot, places, moment, signed=signed, first=first)

    def numbers(self, group: Mapping[str, Any], step: int) -> dict[str, float]:
        """The numbers of a step, worked out in double precision as torch's optimizers do."""
        raise NotImplementedError

    def move(
        self, weight: torch.Tensor, gradient: torch.Tensor, moments: list[torch.Tensor], numbers: Mapping[str, float]
    ) -> list[torch.Tensor]:
        """Change weights in place; gives the new moments."""
        raise NotImplementedError


CodedSteps.step = Optimizer.profile_hook_step(CodedSteps.step)  # type: ignore[method-assign]
CodedSteps.step.hooked = True  # type: ignore[attr-defined]  # once is enough
CodedSteps.step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # it tells schedulers itself


class CodedAdam(CodedSteps, Adam):
    """Adam; decay is added to gradients, unless it is decoupled."""

    moments = (("exp_avg", True), ("exp_avg_sq", False))

    def numbers(self, group: Mapping[str, Any], step: int) -> dict[str, float]:
        """Decay, both rates of forgetting, the size of the step and the second moment's correction."""
        rate, decay = float(group["lr"]), float(group["weight_decay"])
        first, second = (float(beta) for beta in group["betas"])
        return {
            "decoupled": float(isinstance(self, AdamW) or bool(group.get("decoupled_weight_decay"))),
            "decay": decay,
            "kept": 1 - rate * decay,
            "beta1": first,
            "new1": 1 - first,
            "beta2": second,
            "new2": 1 - second,
            "step_size": rate / (1 - first**step),
            "inverse_root": 1 / math.sqrt(1 - second**step),
            "epsilon": float(group["eps"]),
        }

    def move(
        self, weight: torch.Tensor, gradient: torch.Tensor, moments: list[torch.Tensor], numbers: Mapping[str, float]
    ) -> list[torch.Tensor]:
        """One step of Adam."""
        first, second = moments
        if numbers["decoupled"]:
            weight.mul_(numbers["kept"])
        elif numbers["decay"]:
            gradient = gradient + weight * numbers["decay"]
        first = first * numbers["beta1"] + gradient * numbers["new1"]
        second = second * numbers["beta2"] + (gradient * gradient) * numbers["new2"]
        # On x86 torch's root of fp32 is MKL's, which may be off by the last bit; that of a double, rounded, is not.
        root = second.double().sqrt().float()
        divisor = root * numbers["inverse_root"] + numbers["epsilon"]
        weight.sub_(first / divisor * numbers["step_size"])
        return [first, second]


class CodedAdamW(CodedAdam, AdamW):
    """AdamW with moments of eight bits."""


class CodedSGD(CodedSteps, SGD):
    """SGD with momentum."""

    moments = (("momentum_buffer", True),)

    def numbers(self, group: Mapping[str, Any], step: int) -> dict[str, float]:
        """Rate, decay, momentum and what of a gradient is added to it: all of the first one."""
        return {
            "rate": float(group["lr"]),
            "decay": float(group["weight_decay"]),
            "momentum": float(group["momentum"]),
            "new": 1.0 if step == 1 else 1 - float(group["dampening"]),
            "nesterov": float(group["nesterov"]),
        }

    def move(
        self, weight: torch.Tensor, gradient: torch.Tensor, moments: list[torch.Tensor], numbers: Mapping[str, float]
    ) -> list[torch.Tensor]:
        """One step of SGD."""
        if numbers["decay"]:
            gradient = gradient + weight * numbers["decay"]
        moment = moments[0] * numbers["momentum"] + gradient * numbers["new"]
        direction = gradient + moment * numbers["momentum"] if numbers["nesterov"] else moment
        weight.sub_(direction * numbers["rate"])
        return [moment]


Update = Callable[[torch.Tensor, torch.Tensor, Slots, Mapping[str, float], int], None]
"""Takes one step of one parameter, from weights and gradients in a row, its slots, the numbers of the step, and the
place of the first."""


def fast_update(optimizer: CodedSteps, weights: torch.Tensor, slots: Slots) -> Update | None:
    """What updates a parameter in one pass where it lies, where there is such a kernel. They come with compilers."""
    if not isinstance(optimizer, CodedAdam):
        return None
    if weights.is_cuda:
        from dovetail.train import triton_kernels
        from dovetail.train.numeric import device_adam

        is_so = weights.dtype == torch.float32 and "exp_avg_scale" in slots
        return device_adam.update if is_so and triton_kernels.is_there() else None
    from dovetail.train.spill import coded_adam_kernel

    return coded_adam_kernel.update if weights.device.type == "cpu" and coded_adam_kernel.load() is not None else None


KINDS: dict[type[Optimizer], type[CodedSteps]] = {Adam: CodedAdam, AdamW: CodedAdamW, SGD: CodedSGD}


def is_coded(slots: Mapping[str, Any], parameter: torch.Tensor) -> bool:
    """Whether a parameter's moments are kept in 8 bits.

    >>> is_coded({}, torch.zeros(64, 64)), is_coded({"bits": 32}, torch.zeros(64, 64)), is_coded({}, torch.zeros(8))
    (True, False, False)
    """
    return slots.get("bits", 8) == 8 and parameter.numel() >= LEAST_NUMBERS


def prepare_slots(
    slots: Slots,
    parameter: torch.Tensor,
    moments: tuple[tuple[str, bool], ...],
    zeros: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
) -> None:
    """Give a parameter's state the slots that it has not yet, of zeros."""
    if "step" in slots:
        return
    slots["step"] = torch.tensor(0.0)
    for slot, _ in moments:
        if not is_coded(slots, parameter):
            dtype = torch.bfloat16 if slots.get("bits") == 16 else torch.float32
            like = torch.empty(1, dtype=dtype, device=parameter.device).expand(parameter.shape)
            is_cut = hasattr(parameter, "to_local")
            slots[slot] = torch.zeros_like(parameter.detach(), dtype=dtype) if is_cut else zeros(like)
            continue
        for name, like in _code_templates(slot, parameter):
            slots[name] = zeros(like) if not hasattr(like, "to_local") else torch.zeros_like(like)


def _code_templates(slot: str, parameter: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of the type and shape of a moment's codes and scales; they take no memory."""
    part = local(parameter.detach())
    codes = torch.empty(1, dtype=torch.uint8, device=part.device).expand(part.shape)
    scales = torch.empty(1, device=part.device).expand(count_blocks(part.numel()))
    if not hasattr(parameter, "to_local"):
        yield slot, codes
        yield f"{slot}_scale", scales
        return
    from torch.distributed.tensor import DTensor

    ranks = parameter.device_mesh.size()
    if parameter.shape[0] % ranks or part.numel() % BLOCK:
        raise TechniqueRefused(
            f"state-8bit keeps a scale for each {BLOCK} numbers, so that a parameter must be cut between them; one of "
            f"shape {tuple(parameter.shape)} is not, over {ranks} devices. Use as many as divide it, or spill."
        )
    for name, like in ((slot, codes), (f"{slot}_scale", scales)):
        yield name, DTensor.from_local(like.contiguous(), parameter.device_mesh, parameter.placements, run_check=False)


def key_of(slots: Mapping[str, Any], what: str) -> int:
    """The key of the chances by which a moment, or the weight, is rounded in this step; 0 where nothing is."""
    return key(slots["key"], what, int(slots["step"])) if "key" in slots else 0


def first_place(parameter: Any) -> int:
    """The place, among all of a parameter's numbers, of the first that is in this process."""
    if not hasattr(parameter, "to_local"):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return sum(at * stride for at, stride in zip(offset, parameter.stride(), strict=True))


def local(tensor: Any) -> torch.Tensor:
    """What of a tensor is in this process."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def _read(slots: Slots, slot: str, places: slice, *, signed: bool) -> torch.Tensor:
    moment = local(slots[slot]).view(-1)[places]
    if f"{slot}_scale" not in slots:
        return moment.float()
    return decode(moment, local(slots[f"{slot}_scale"])[_block_places(places)], signed=signed)


def _write(slots: Slots, slot: str, places: slice, moment: torch.Tensor, *, signed: bool, first: int) -> None:
    kept = local(slots[slot]).view(-1)[places]
    if f"{slot}_scale" not in slots:
        if kept.dtype == torch.bfloat16:
            moment = round_by_chance(moment, key=key_of(slots, slot), start=first + places.start)
        kept.copy_(moment)
        return
    codes, scales = encode(moment, signed=signed)
    kept.copy_(codes)
    local(slots[f"{slot}_scale"])[_block_places(places)] = scales


def _block_places(places: slice) -> slice:
    return slice(places.start // BLOCK, places.stop // BLOCK)
