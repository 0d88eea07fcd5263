"""What a microbatch of some form would do in a stack, found by running it on tensors without contents.

Nothing is computed and nothing changes, so a technique can refuse before it starts, whatever the model's size.
"""

import contextlib
import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from dovetail.train.fuse.dropout_masks import AGAIN, Masked, dropouts_of
from dovetail.train.fuse.fused_program import FusedProgram, Outline, StackLayout
from dovetail.train.fuse.stacked_batches import Form
from dovetail.train.postponed_compiler import uncompiled
from dovetail.vocabulary import TechniqueRefused

_MEMBERS = 2
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)


def outline(program: FusedProgram, model: nn.Module, layout: StackLayout, form: Form) -> Outline:
    """What a microbatch of this form does. Raises `TechniqueRefused`, naming what cannot be stacked."""
    # Kernels that torch has compiled for the program before would be called with tensors without contents, and crash.
    with _unchanged(program.skeleton), uncompiled(), FakeTensorMode(allow_non_fake_inputs=True):
        draws, alone = _refuse_what_it_raises("alone", lambda: _run_recorded(program, model, form))
        if replaced := [name for name, (before, after) in alone.items() if before is not after]:
            raise TechniqueRefused(f"forward must change buffers in place; it puts another in {replaced[0]!r}'s place")
        found: Outline = _refuse_what_it_raises(
            "in a stack", lambda: _run_stacked(program, model, layout, form, tuple(draws))
        )
        return found


def _run_recorded(program: FusedProgram, model: nn.Module, form: Form) -> tuple[list[Any], dict[str, Any]]:
    try:
        return _record(program, model, form)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return [], {}  # a stack cannot do that either, and says better what it was


def _record(program: FusedProgram, model: nn.Module, form: Form) -> tuple[list[Any], dict[str, Any]]:
    tensors = {name: _make_empty(tensor, program.device) for name, tensor in _tensors(model).items()}
    draws, after = program.trace_alone(tensors, _leaves(form, program.device), form)
    buffers = {name for name, _ in model.named_buffers()}
    return draws, {name: (tensors[name], after[f"model.{name}"]) for name in buffers}


def _run_stacked(
    program: FusedProgram, model: nn.Module, layout: StackLayout, form: Form, draws: tuple[Any, ...]
) -> Outline:
    own = _tensors(model)
    stacked = {name: _make_empty(own[name], program.device, rows=_MEMBERS) for name in layout.stacked}
    common = {name: _make_empty(own[name], program.device) for name in layout.common}
    before = {name: tensor._version for name, tensor in common.items()}
    leaves = [torch.stack([leaf] * _MEMBERS) for leaf in _leaves(form, program.device)]
    masks = {draw.key: torch.empty((_MEMBERS, *draw.shape), dtype=draw.dtype, device=program.device) for draw in draws}
    program.prepare(draws, dict.fromkeys(dropouts_of(draws)))
    trained = [stacked[name].requires_grad_() for name in layout.trained]
    lowering = program.make_lowering()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with program.computing(lowering, attends=False):
            losses, _ = program(stacked, common, masks, leaves, form=form, outline=Outline(draws=draws))
        gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
    if changed := [name for name, tensor in common.items() if tensor._version != before[name]]:
        raise TechniqueRefused(f"forward changes {changed[0]!r}, which the tasks have in common")
    unused = {name for name, gradient in zip(layout.trained, gradients, strict=True) if gradient is None}
    return Outline(
        draws=draws,
        attends=lowering.attended,
        lowered=lowering.acted,
        loops=any("performance drop" in str(warning.message) for warning in said),
        unused=frozenset(unused),
    )


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _make_empty(tensor: torch.Tensor, device: torch.device, *, rows: int | None = None) -> torch.Tensor:
    shape = tensor.shape if rows is None else (rows, *tensor.shape)
    return torch.empty(shape, dtype=tensor.dtype, device=device)


def _leaves(form: Form, device: torch.device) -> list[torch.Tensor]:
    word, *rest = form
    if word == "tensor":
        return [torch.empty(rest[0], dtype=rest[1], device=device)]
    return [] if word == "value" else [leaf for part in rest[-1] for leaf in _leaves(part, device)]


def _refuse_what_it_raises(where: str, call: Callable[[], Any]) -> Any:
    """What `call` gives; whatever it raises becomes a refusal that names the operation and the line."""
    try:
        return call()
    except TechniqueRefused:
        raise
    except Exception as error:
        raise TechniqueRefused(f"{_reason(error, where)}{_line(error)}") from error


def _reason(error: Exception, where: str) -> str:
    words = " ".join(str(error).split())
    if "escaped from inside a function being vmapped" in words:
        return AGAIN
    if "randomness error mode" in words:
        return "random numbers must be drawn by dropout modules (nn.Dropout and its kin); others are drawn in forward"
    if "calling .item()" in words:
        return (
            "the loss must leave values on the device; it calls .item(), or turns a tensor into a number. Keep tensors"
        )
    if "data-dependent control flow" in words:
        return "the loss must do the same for every batch; it branches on the value of a tensor (if, while, bool())"
    if "dynamic shape" in words:
        return "shapes must not depend on values; they do, as in indexing with a mask, nonzero or unique"
    return f"the loss must run {where}; it raised {type(error).__name__}: {words[:300]}"


def _line(error: Exception) -> str:
    """Where the user's code was, where it was reached."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_ours(file: str) -> bool:
    return file.startswith((_TORCH, _OURS))


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Within, forward runs for nobody: Python's and NumPy's generators and modules' plain attributes must stay."""
    generators, attributes = (random.getstate(), numpy.random.get_state(legacy=False)), _plain_attributes(model)
    try:
        yield
        if random.getstate() != generators[0] or not _is_same(numpy.random.get_state(legacy=False), generators[1]):
            raise TechniqueRefused("forward must draw no numbers from Python's or NumPy's generators; it does")
        if _plain_attributes(model) != attributes:
            raise TechniqueRefused("forward must leave attributes of modules as they are; it changes some")
    finally:
        random.setstate(generators[0])
        numpy.random.set_state(generators[1])


def _plain_attributes(model: nn.Module) -> list[dict[str, Any]]:
    kinds = (bool, int, float, str)
    return [
        {name: value for name, value in vars(m).items() if isinstance(value, kinds)}
        for m in model.modules()
        if not isinstance(m, Masked)
    ]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_is_same(value, other[name]) for name, value in one.items())
    return bool(numpy.array_equal(one, other))
