"""Whether tasks can be trained as one program, and why not. Looks at everything and changes nothing."""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from dovetail.train.base import SessionMember, Training
from dovetail.train.fuse.differences import difference, models_differ
from dovetail.train.fuse.fused_program import FusedProgram, Outline, StackLayout
from dovetail.train.fuse.outline import outline
from dovetail.train.fuse.shared_tensors import layout_of
from dovetail.train.fuse.stacked_batches import Form, first_of, flatten
from dovetail.train.fuse.stacked_optimizers import refusal
from dovetail.train.state import parameter_names
from dovetail.train.undeclared import refuse_declared, refuse_scaling
from dovetail.vocabulary import TechniqueRefused


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examined:
    """A gang that can be stacked: what all of them run, the form of its first batch, and what that does."""

    program: FusedProgram
    form: Form
    layout: StackLayout
    outline: Outline


def examine(members: Sequence[SessionMember], *, device: torch.device | None = None) -> Examined:
    """Raises `TechniqueRefused` where the gang cannot be stacked exactly. The trial computes nothing."""
    if len(members) < 2:
        raise TechniqueRefused(f"fuse trains two tasks or more, got {len(members)}")
    trainings = [member.training for member in members]
    parameters = [parameter for training in trainings for parameter in training.model.parameters()]
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise TechniqueRefused("tasks must have models of their own; two share one, or a part of one")
    for number, training in enumerate(trainings, start=1):
        if reason := next(_faults(training), None):
            raise TechniqueRefused(f"task {number} of {len(trainings)}: {reason}")
    for number, training in enumerate(trainings[1:], start=2):
        if reason := _differ(trainings[0], training):
            raise TechniqueRefused(f"tasks must be one program; in task 1 against task {number}, {reason}")
    return _tried(trainings[0], trainings, device)


def _tried(first: Training, trainings: Sequence[Training], device: torch.device | None) -> Examined:
    try:
        form, leaves = flatten(first_of(first.batches))
        program = FusedProgram(trainings, device=device or _device(first.model, leaves))
    except TechniqueRefused:
        raise
    except Exception as error:
        raise TechniqueRefused(
            f"a model must be one that can be copied, and batches must give one; {type(error).__name__}: {error}"
        ) from error
    layout = layout_of(trainings, compare=False)
    found = outline(program, first.model, layout, form)
    return Examined(program=program, form=form, layout=layout, outline=found)


def _device(model: nn.Module, leaves: Sequence[torch.Tensor]) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *leaves)), torch.device("cpu"))


def _faults(training: Training) -> Iterator[str]:
    """What makes one training unfit for any stack."""
    if training.step is not None:
        yield "fuse must take the step itself; the training has a step function of its own"
        return
    if reason := refuse_declared(training, name="fuse") or refuse_scaling(training, name="fuse"):
        yield reason
        return
    model = training.model
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        yield "parameters must have their shapes before training; some are lazy. Run one batch through the model first"
        return
    for name, module in model.named_modules():
        called = repr(name) if name else "the model"
        if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
            yield f"modules must run as Python; {called} is scripted or compiled"
        if isinstance(module, nn.RNNBase):
            yield f"every operation must have a rule under vmap; those of {called}, which are recurrent, have none"
        if module._backward_hooks or module._backward_pre_hooks:
            yield f"gradients must be seen by the optimizer alone; {called} has hooks on backward"
        if getattr(module, "max_norm", None) is not None:
            yield f"forward must leave weights as they are; {called} changes its own (max_norm)"
        if getattr(module, "sparse", False) is True:
            yield f"gradients must be dense; those of {called} are sparse"
    yield from _optimizer_faults(training)


def _optimizer_faults(training: Training) -> Iterator[str]:
    if reason := refusal(training.optimizer):
        yield reason
        return
    names = parameter_names(training.model)
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    stepped = {parameter for group in training.optimizer.param_groups for parameter in group["params"]}
    for parameter, name in names.items():
        hooks = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        if not parameter.requires_grad:
            continue
        if hooks:
            yield f"gradients must be seen by the optimizer alone; {name!r} has hooks"
        if parameter.dtype not in (torch.float32, torch.float64):
            yield f"trained parameters must be float32 or float64; {name!r} is {parameter.dtype}. Use precision='bf16'"
        if parameter not in stepped and training.clip_norm is not None:
            yield f"what is clipped must be stepped; {name!r} wants gradients and is not in the optimizer. Freeze it"
    if not any(parameter.requires_grad and parameter in stepped for parameter in names):
        yield "there must be something to train; the optimizer has no parameter that wants gradients"


def _differ(one: Training, other: Training) -> str | None:
    if reason := models_differ(one.model, other.model):
        return reason
    if one.precision != other.precision:
        return f"precision is {one.precision!r} against {other.precision!r}"
    if type(one.optimizer) is not type(other.optimizer):
        return f"the optimizer is {type(one.optimizer).__name__} against {type(other.optimizer).__name__}"
    groups = [_groups(training) for training in (one, other)]
    if groups[0] != groups[1]:
        return f"the optimizer's groups hold {groups[0]} against {groups[1]}"
    return difference(one.loss, other.loss, what="the loss")


def _groups(training: Training) -> list[list[str]]:
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    names = parameter_names(training.model)
    return [[names.get(parameter, "?") for parameter in group["params"]] for group in training.optimizer.param_groups]
