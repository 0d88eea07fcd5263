"""Training with other mathematics, by name: which trainings can have it, how one gets it, how its state says so.

Knows optimizers and sessions; which approximations there are is `vocabulary/approximations`, whether one is chosen is
planning's.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dovetail.feeds.keys import key
from dovetail.train.fp8_products import FP8, refuse_products
from dovetail.train.numeric.coded_optimizers import KINDS, CodedSteps
from dovetail.train.weights import read_dtype, sites
from dovetail.vocabulary import APPROXIMATIONS, CheckpointError, TechniqueRefused
from dovetail.vocabulary.approximations import KNOB, Approximate, join_knobs, names_of, split_knobs

if TYPE_CHECKING:
    from dovetail.train.base import Knobs, Members, Technique, Training, TrainingSession

WEIGHTS = "weights-bf16"
# What the optimizer does by itself, whatever technique it is stepped by.
_OPTIMIZERS_OWN = ("state", "weights")
_FLAGS = ("amsgrad", "maximize", "differentiable", "capturable")
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def refusal(training: "Training", name: str) -> str | None:
    """Why a training cannot have the approximation of this name, or None if it can.

    >>> from dovetail.train.base import Training
    >>> model = nn.Linear(2, 1)
    >>> plain = Training(model=model, batches=[], loss=print, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    >>> refusal(plain, "state-8bit")
    "'state-8bit' must have moments to keep; SGD has none without momentum"
    """
    wanted = APPROXIMATIONS[name].optimizers
    if name == FP8:
        return refuse_products(training.model, training.precision)
    if not wanted:
        return None
    optimizer = training.optimizer
    if isinstance(optimizer, Mapping) or training.step is not None:
        return f"{name!r} must have one optimizer that Dovetail steps; this training steps its own"
    if type(optimizer) not in KINDS and not isinstance(optimizer, CodedSteps):
        return f"{name!r} must have one of torch's optimizers {', '.join(wanted)}, got {type(optimizer).__name__}"
    for group in optimizer.param_groups:
        if flag := next((flag for flag in _FLAGS if group.get(flag)), None):
            return f"{name!r} must have an optimizer without {flag}; this one has it"
        if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
            return f"{name!r} must have moments to keep; SGD has none without momentum"
        if isinstance(group["lr"], torch.Tensor):
            return f"{name!r} must have a learning rate that is a number; this one is a tensor"
        if other := next((each.dtype for each in group["params"] if each.grad_dtype != torch.float32), None):
            return f"{name!r} must have an optimizer of float32 parameters; this one has {other}"
    if name == WEIGHTS and not half_weights(training):
        return (
            f"{name!r} must have weights that are read in bf16 alone: precision 'bf16' with linear layers or "
            f"convolutions, or 'bf16-pure'; this training has none, with precision {training.precision!r}"
        )
    return None


def approximations_of(training: "Training") -> tuple[str, ...]:
    """The approximations that a training can have, allowed or not."""
    return tuple(name for name in sorted(APPROXIMATIONS) if refusal(training, name) is None)


def approximate_training(training: "Training", approximate: Approximate, *, seed: int = 0) -> None:
    """Let a training that has not begun take its steps with these approximations; what they draw follows from the
    seed. Raises `TechniqueRefused` where it cannot."""
    for name in names_of(approximate):
        if reason := refusal(training, name):
            raise TechniqueRefused(reason)
    for group in (group for each in training.optimizers().values() for group in each.param_groups if approximate):
        group[KNOB] = recurrence(approximate)
    if any(APPROXIMATIONS[name].concerns in _OPTIMIZERS_OWN for name in names_of(approximate)):
        _code_state(training, names_of(approximate), seed=seed)


def half_weights(training: "Training") -> list[nn.Parameter]:
    """The weights of the optimizer's that computing reads in bf16 alone, so that bf16 is all that need be kept.

    >>> from dovetail.train.base import Training
    >>> model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 1))
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> some = Training(model=model, batches=[], loss=print, optimizer=optimizer, precision="bf16")
    >>> [tuple(each.shape) for each in half_weights(some)]
    [(1, 2), (1,)]
    """
    stepped = {p for each in training.optimizers().values() for group in each.param_groups for p in group["params"]}
    places = sites(training.model)
    return [p for p in places if p in stepped and read_dtype(p, places[p], training.precision) == torch.bfloat16]


def _code_state(training: "Training", names: Sequence[str], *, seed: int) -> None:
    """Let the optimizer keep moments in 8 bits or in bf16, or weights in bf16, as the names say."""
    optimizer = training.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    if isinstance(optimizer, CodedSteps):
        return
    optimizer.__class__ = KINDS[type(optimizer)]
    optimizer.__dict__.pop("step", None)  # a scheduler's wrapper, which would call what it was made for
    called = {parameter: name for name, parameter in training.model.named_parameters()}
    halves = set(half_weights(training)) if WEIGHTS in names else set()
    embeddings = {p for each in training.model.modules() if isinstance(each, _EMBEDDINGS) for p in each.parameters()}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        slots: dict[str, Any] = {}
        if "state-bf16" in names:
            slots["bits"] = 16
        elif "state-8bit" not in names or parameter in embeddings:
            slots["bits"] = 32
        if parameter in halves:
            parameter.data = parameter.data.bfloat16()
            parameter.grad_dtype = torch.float32  # sums of microbatches and norms are what they are with exact weights
        if parameter in halves or slots.get("bits") == 16:
            slots["key"] = key(seed, "moments", called.get(parameter, ""))
        if slots:
            optimizer.state[parameter] = slots


def open_session(
    technique: "Technique", members: "Members", *, device: torch.device, threads: int, knobs: "Knobs"
) -> "TrainingSession":
    """A technique's session of these members, which take their steps with what the knob `approximate` says. Of that,
    what is not the optimizer's is for the technique to do, which is told by the same knob."""
    approximate, own = split_knobs(knobs)
    for member in members:
        approximate_training(member.training, approximate, seed=member.seed)
    rest = "+".join(name for name in names_of(approximate) if APPROXIMATIONS[name].concerns not in _OPTIMIZERS_OWN)
    return technique.open(members, device=device, threads=threads, knobs=join_knobs(rest, own))


def recurrence(approximate: Approximate) -> str:
    """What a checkpoint says of the mathematics of its steps.

    >>> recurrence("state-8bit")
    'state-8bit=1'
    """
    return "+".join(f"{name}={APPROXIMATIONS[name].version}" for name in names_of(approximate))


def check_recurrence(own: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise `CheckpointError` where the steps of a checkpoint, by its optimizer's groups, were not taken as those of
    this training are."""
    for mine, theirs in zip(own, saved, strict=False):
        here, there = str(mine.get(KNOB, "")), str(theirs.get(KNOB, ""))
        if here == there:
            continue
        newer = [
            part for part in names_of(there) if part.partition("=")[0] in {p.partition("=")[0] for p in names_of(here)}
        ]
        if newer:
            raise CheckpointError(
                f"the recurrence of a checkpoint must be one that this version knows, {here!r}; it has {there!r}. "
                f"Go on with the version of Dovetail that wrote it."
            )
        raise CheckpointError(
            f"a training goes on with the mathematics it began with; the checkpoint has {there or 'exact steps'}, "
            f"this training {here or 'exact steps'}. Allow what it began with, or train it anew."
        )


def check_moments(slots: Mapping[str, Any], parameter: str) -> None:
    """Raise `CheckpointError` where a parameter's moments, kept in fewer bits or beside weights that are, are no
    numbers, or their scales: all that these scale would be NaN."""
    for slot, value in slots.items():
        is_kept = slot.endswith("_scale") or "key" in slots
        if is_kept and isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
            raise CheckpointError(
                f"moments must be finite to go on from; {slot.removesuffix('_scale')} of {parameter!r} has infinities "
                f"or NaN. Go on from an earlier checkpoint with a smaller learning rate, or with clip_norm."
            )
