"""Whether tasks can be trained as one program, and why not. Looks at everything and changes nothing.

One member's modules and loss run for all. What they read besides tensors of the model (attributes, what a loss
closes over) must therefore be the same in all of them, and what cannot be compared counts as different.
"""

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.base import SessionMember, Training
from dovetail.train.compiled_programs import refuse_compiled_draws
from dovetail.train.fuse.attention_masks import rates_of
from dovetail.train.fuse.dropout_masks import DROPOUTS
from dovetail.train.fuse.fused_program import FusedProgram, Outline, StackLayout
from dovetail.train.fuse.outline import outline
from dovetail.train.fuse.shared_tensors import layout_of
from dovetail.train.fuse.stacked_batches import Form, flatten, peek_first
from dovetail.train.fuse.stacked_optimizers import refusal
from dovetail.train.postponed_compiler import is_compiled
from dovetail.train.state import parameter_names
from dovetail.train.undeclared import refuse_declared, refuse_scaling
from dovetail.vocabulary import TechniqueRefused

UNREAD = "_dovetail_unread"
"""The attribute by which a module may name others of its own that neither forward nor the loss reads."""
_OF_MODULES = {"_parameters", "_buffers", "_modules", UNREAD}
# The pairs that were compared, by their ids, which are theirs for as long as they are kept here.
_Met = dict[tuple[int, int], tuple[Any, Any]]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size)


def difference(one: Any, other: Any, *, what: str) -> str | None:
    """Where two values differ, in words that begin with `what`, or None where they are the same.

    >>> difference({"heads": 4}, {"heads": 8}, what="model")
    "model['heads'] is 4 against 8"
    """
    return next(_differences(one, other, what, {}), None)


def models_differ(one: nn.Module, other: nn.Module) -> str | None:
    """Where two models differ in more than the values of their parameters and buffers.

    >>> models_differ(nn.Linear(2, 3), nn.Linear(2, 4))
    'the model.out_features is 3 against 4'
    """
    return _models_differ(one, other, {})


def _models_differ(one: nn.Module, other: nn.Module, seen: _Met) -> str | None:
    names, others = dict(one.named_modules()), dict(other.named_modules())
    if names.keys() != others.keys():
        (name, *_) = sorted(names.keys() ^ others.keys())
        return f"only one of the models has a module {name!r}"
    found = (_modules_differ(module, others[name], name, seen) for name, module in names.items())
    return next((words for words in found if words), None) or _shapes_differ(one, other)


def _modules_differ(one: nn.Module, other: nn.Module, name: str, seen: _Met) -> str | None:
    what = f"the model's {name!r}" if name else "the model"
    if type(one) is not type(other):
        return f"{what} is a {type(one).__name__} against a {type(other).__name__}"
    attributes, others = (_attributes(module) for module in (one, other))
    if attributes.keys() != others.keys():
        (first, *_) = sorted(attributes.keys() ^ others.keys())
        return f"only one of the models has {what}.{first}"
    pairs = ((f"{what}.{key}", value, others[key]) for key, value in attributes.items())
    return next((words for path, value, own in pairs for words in _differences(value, own, path, seen)), None)


def _attributes(module: nn.Module) -> dict[str, Any]:
    aside = _OF_MODULES | ({"p"} if type(module) in DROPOUTS else set()) | set(vars(module).get(UNREAD, ()))
    return {name: value for name, value in vars(module).items() if name not in aside}


def _shapes_differ(one: nn.Module, other: nn.Module) -> str | None:
    for kind in ("parameters", "buffers"):
        mine, others = (dict(getattr(model, f"named_{kind}")(remove_duplicate=False)) for model in (one, other))
        if mine.keys() != others.keys():
            return f"only one of the models has {sorted(mine.keys() ^ others.keys())[0]!r} among its {kind}"
        for name, tensor in mine.items():
            look = [(tuple(each.shape), each.dtype, each.requires_grad) for each in (tensor, others[name])]
            if look[0] != look[1]:
                return f"{name!r} is {_describe_tensor(tensor)} against {_describe_tensor(others[name])}"
    ties = [[names for names in _ties(model) if len(names) > 1] for model in (one, other)]
    return None if ties[0] == ties[1] else f"the models tie different parameters: {ties[0]} against {ties[1]}"


def _ties(model: nn.Module) -> list[list[str]]:
    found: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(parameter, []).append(name)
    return list(found.values())


def _describe_tensor(tensor: torch.Tensor) -> str:
    words = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return words if tensor.requires_grad else f"{words}, frozen"


def _differences(one: Any, other: Any, path: str, seen: _Met) -> Iterator[str]:
    if one is other or (id(one), id(other)) in seen:
        return
    seen[id(one), id(other)] = one, other
    if type(one) is not type(other):
        yield f"{path} is a {type(one).__name__} against a {type(other).__name__}"
    elif isinstance(one, torch.Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        if one.requires_grad or not alike or not torch.equal(one, other):
            yield f"{path} is a tensor that is not the same in both"
    elif isinstance(one, _PLAIN):
        if one != other and not (one != one and other != other):  # NaN is alike
            yield f"{path} is {one!r} against {other!r}"
    else:
        yield from _parts_differ(one, other, path, seen)


def _parts_differ(one: Any, other: Any, path: str, seen: _Met) -> Iterator[str]:
    if isinstance(one, types.FunctionType):
        yield from _functions_differ(one, other, path, seen)
    elif isinstance(one, types.MethodType):
        yield from _differences(one.__func__, other.__func__, path, seen)
        yield from _differences(one.__self__, other.__self__, f"{path}.__self__", seen)
    elif isinstance(one, functools.partial):
        for name in ("func", "args", "keywords"):
            yield from _differences(getattr(one, name), getattr(other, name), f"{path}.{name}", seen)
    elif isinstance(one, Mapping):
        yield from _mappings_differ(one, other, path, seen)
    elif isinstance(one, Sequence):
        if len(one) != len(other):
            yield f"{path} has {len(one)} parts against {len(other)}"
        for number, (mine, its) in enumerate(zip(one, other, strict=False)):
            yield from _differences(mine, its, f"{path}[{number}]", seen)
    elif isinstance(one, nn.Module):
        # A module may hold methods of its own, or itself, so what was met is known from here on.
        if words := _models_differ(one, other, seen):
            yield f"{path}: {words}"
        for name, tensor in one.state_dict().items():
            yield from _differences(tensor, other.state_dict()[name], f"{path}.{name}", seen)
    else:
        yield from _objects_differ(one, other, path, seen)


def _functions_differ(one: types.FunctionType, other: types.FunctionType, path: str, seen: _Met) -> Iterator[str]:
    if one.__code__ != other.__code__:
        yield f"{path} is {one.__qualname__} (line {one.__code__.co_firstlineno}) against other code"
        return
    names = one.__code__.co_freevars
    for name, mine, its in zip(names, one.__closure__ or (), other.__closure__ or (), strict=True):
        yield from _differences(_content(mine), _content(its), f"{name!r}, which {path} reads,", seen)
    for part in ("__defaults__", "__kwdefaults__"):
        yield from _differences(getattr(one, part), getattr(other, part), f"{path}.{part}", seen)
    if one.__globals__ is not other.__globals__:  # the program's file was loaded twice
        for name in one.__code__.co_names:
            values = one.__globals__.get(name), other.__globals__.get(name)
            if any(isinstance(value, _PLAIN) for value in values):
                yield from _differences(*values, f"{name!r}, which {path} reads,", seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet: a function that names itself
        return None


def _mappings_differ(one: Any, other: Any, path: str, seen: _Met) -> Iterator[str]:
    if list(one) != list(other):
        yield f"{path} has the keys {list(one)[:8]} against {list(other)[:8]}"
        return
    for key, value in one.items():
        yield from _differences(value, other[key], f"{path}[{key!r}]", seen)


def _objects_differ(one: Any, other: Any, path: str, seen: _Met) -> Iterator[str]:
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            yield from _differences(getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}", seen)
    elif hasattr(one, "__dict__") and not isinstance(one, types.ModuleType):
        yield from _mappings_differ(dict(sorted(vars(one).items())), dict(sorted(vars(other).items())), path, seen)
    elif not _equal(one, other):
        yield f"{path} is a {type(one).__name__}, and not the same one in both"


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


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
    return _try_out(trainings[0], trainings, device)


def _try_out(first: Training, trainings: Sequence[Training], device: torch.device | None) -> Examined:
    try:
        form, leaves = flatten(peek_first(first.batches))
        program = FusedProgram(trainings, device=device or _device(first.model, leaves))
    except TechniqueRefused:
        raise
    except Exception as error:
        raise TechniqueRefused(
            f"a model must be one that can be copied, and batches must give one; {type(error).__name__}: {error}"
        ) from error
    layout = layout_of(trainings, compare=False)
    found = outline(program, first.model, layout, form)
    if any(draw.rate is not None for draw in found.draws):
        _refuse_rates(trainings)
    return Examined(program=program, form=form, layout=layout, outline=found)


def _refuse_rates(trainings: Sequence[Training]) -> None:
    """Models pass rates of dropout on to attention, of which a stack has the first's."""
    first, *others = (rates_of(training.model) for training in trainings)
    if any(rates != first for rates in others):
        raise TechniqueRefused(
            "tasks whose attention drops (dropout_p) must have equal rates of dropout; they have not"
        )


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
    if reason := refuse_compiled_draws(model, training.loss, name="fuse"):
        yield reason
    for name, module in model.named_modules():
        called = repr(name) if name else "the model"
        if isinstance(module, torch.jit.ScriptModule) or is_compiled(module):
            yield f"modules must run as Python; {called} is scripted or compiled"
        if isinstance(module, nn.RNNBase):
            yield f"every operation must have a rule under vmap; those of {called}, which are recurrent, have none"
        if module._backward_hooks or module._backward_pre_hooks:
            yield f"gradients must be seen by the optimizer alone; {called} has hooks on backward"
        if getattr(module, "max_norm", None) is not None:
            yield f"forward must leave weights as they are; {called} changes its own (max_norm)"
        if getattr(module, "scale_grad_by_freq", False) is True:
            yield f"gradients must be plain sums; those of {called} are scaled by how often rows occur"
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
    if set(one.allow) != set(other.allow):
        return f"{sorted(one.allow)} may be approximated against {sorted(other.allow)}"
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
