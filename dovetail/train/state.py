"""The canonical state of a training: named tensors and plain data, the same whatever technique ran.

Tensors are named `model/<parameter>`, `optimizer/<optimizer>/<slot>/<parameter>` and so on; everything
else is JSON in which `{"__tensor__": name}` points at a tensor. Nothing here can run code when read.
Knows torch's state dicts; knows nothing of files.
"""

import base64
import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import nn

from dovetail.train.numeric import check_moments, check_recurrence
from dovetail.vocabulary import CheckpointError

if TYPE_CHECKING:
    from dovetail.train.base import Training


# Optimizers of torch that keep states of other shapes than their parameters'.
_OTHER_SHAPES = {"Adafactor", "LBFGS"}
_PLAIN = {bool, int, str, type(None)}  # what is in JSON what it is


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Everything that decides how a training goes on after `step` steps. Of the tensors, those named in `frozen` are
    not trained, so that they are likely what they were."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, Any]
    frozen: frozenset[str] = frozenset()


def capture(
    training: "Training", *, step: int, feed: Any, random: Any, scaler: "torch.amp.GradScaler | None" = None
) -> TrainingState:
    """The state of a training whose model is whole in this process, and of what scales its loss.

    Tensors are the live ones, not copies: write or clone them before the next step.
    """
    tensors: dict[str, torch.Tensor] = {}
    values = {
        "model": _capture_model(training.model, tensors),
        "optimizers": {
            name: _capture_optimizer(name, optimizer, training.model, tensors)
            for name, optimizer in training.optimizers().items()
        },
        "feed": pack(feed, "feed", tensors),
        "random": pack(random, "random", tensors),
        **capture_stateful(training, tensors),
        **({"scaler": pack(scaler.state_dict(), "scaler", tensors)} if scaler is not None else {}),
    }
    frozen = {f"model/{name}" for name, each in training.model.named_parameters() if not each.requires_grad}
    return TrainingState(step=step, tensors=tensors, values=values, frozen=frozenset(frozen & tensors.keys()))


def restore(
    training: "Training", state: TrainingState, *, scaler: "torch.amp.GradScaler | None" = None
) -> tuple[Any, Any]:
    """Put `state` into a freshly built training; gives back the feed's position and the random state."""
    values, tensors = state.values, state.tensors
    restore_model(training.model, values["model"], tensors)
    optimizers = training.optimizers()
    if optimizers.keys() != values["optimizers"].keys():
        raise _mismatch("optimizers", sorted(values["optimizers"]), sorted(optimizers))
    for name, optimizer in optimizers.items():
        _restore_optimizer(name, optimizer, training.model, values["optimizers"][name], tensors)
    if scaler is not None and "scaler" in values:  # a warm clone's weights may come from another precision
        scaler.load_state_dict(unpack(values["scaler"], tensors))
    restore_stateful(training, values, tensors)
    return unpack(values["feed"], tensors), unpack(values["random"], tensors)


def with_weights(own: TrainingState, other: TrainingState) -> TrainingState:
    """`own` with the model of `other`: its parameters and buffers, and nothing else of it. Optimizer, schedule, data
    position and random numbers stay as `own` has them, since parameters that differ show exactly there.

    >>> own = TrainingState(step=0, tensors={"model/w": torch.zeros(1)}, values={"model": {}, "feed": 1})
    >>> other = TrainingState(step=9, tensors={"model/w": torch.ones(1), "optimizer//m/w": torch.ones(1)},
    ...                       values={"model": {}, "feed": 5})
    >>> with_weights(own, other)
    TrainingState(step=0, tensors={'model/w': tensor([1.])}, values={'model': {}, 'feed': 1}, frozen=frozenset())
    """
    kept = {name: tensor for name, tensor in own.tensors.items() if not name.startswith("model/")}
    theirs = {name: tensor for name, tensor in other.tensors.items() if name.startswith("model/")}
    values = {**own.values, "model": other.values["model"]}
    return TrainingState(step=own.step, tensors={**kept, **theirs}, values=values)


def parameter_names(model: nn.Module) -> dict[torch.Tensor, str]:
    """The first name of each parameter; tied ones have one entry."""
    return {parameter: name for name, parameter in model.named_parameters()}


def _capture_model(model: nn.Module, tensors: dict[str, torch.Tensor]) -> Any:
    # A tied tensor is stored once, under its first name; every later name points there.
    seen: dict[tuple[Any, ...], str] = {}
    index = []
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            key = (value.device, _address(value), value.shape, value.stride(), value.dtype)
            first = seen.setdefault(key, name) if value.numel() else name
            tensors.setdefault(f"model/{first}", value.detach())
            index.append([name, {"__tensor__": f"model/{first}"}])
        else:
            index.append([name, pack(value, f"model/{name}", tensors)])
    return {"__dict__": index}


def _address(tensor: Any) -> Any:
    if not hasattr(tensor, "to_local"):
        return tensor.data_ptr()
    # A sharded tensor has no address, and on a rank that has no row of it the part here has none either.
    part = tensor.to_local()
    return part.untyped_storage()._cdata, part.storage_offset()


def restore_model(model: nn.Module, packed: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put the parameters and buffers of a checkpoint into a model. Raises `CheckpointError` where they are others."""
    found = unpack(packed, tensors)
    own = model.state_dict()
    if found.keys() != own.keys():
        raise _mismatch("model tensors", sorted(found), sorted(own))
    for name, value in own.items():
        shape = getattr(found[name], "shape", None)
        if isinstance(value, torch.Tensor) and value.shape != shape:
            raise _mismatch(f"shape of {name!r}", shape and tuple(shape), tuple(value.shape))
    model.load_state_dict(found)


def capture_stateful(training: "Training", tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Where schedulers and what a program declared stand; of what is not declared, checkpoints have no word."""
    schedule = pack(training.schedule and training.schedule.state_dict(), "schedule", tensors)
    return {"schedule": schedule} | {
        kind: {name: pack(each.state_dict(), f"{kind}/{name}", tensors) for name, each in declared.items()}
        for kind, declared in (("schedules", training.schedules), ("state", training.state))
        if declared
    }


def restore_stateful(training: "Training", values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Let a training's schedules and its further state go on from what a checkpoint has of them."""
    if training.schedule is not None:
        training.schedule.load_state_dict(unpack(values["schedule"], tensors))
    for kind, declared in (("schedules", training.schedules), ("state", training.state)):
        saved = values.get(kind, {})
        if saved.keys() != declared.keys():
            raise _mismatch(kind, sorted(saved), sorted(declared))
        # A copy: whoever is given a tensor may keep it, and change it.
        own = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith(f"{kind}/")}
        for name, each in declared.items():
            each.load_state_dict(unpack(saved[name], own))


def _capture_optimizer(
    name: str, optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, torch.Tensor]
) -> Any:
    names = parameter_names(model)
    groups: list[Any] = []
    state: dict[str, Any] = {}
    for group in optimizer.param_groups:
        members = [_name_of(parameter, names) for parameter in group["params"]]
        rest = {key: value for key, value in group.items() if key != "params"}
        groups.append({"parameters": members, "rest": pack(rest, f"optimizer/{name}/group{len(groups)}", tensors)})
        for parameter, member in zip(group["params"], members, strict=True):
            slots = optimizer.state.get(parameter)
            if slots:
                state[member] = [
                    [slot, pack(value, f"optimizer/{name}/{slot}/{member}", tensors)] for slot, value in slots.items()
                ]
    return {"groups": groups, "state": state}


def _restore_optimizer(
    name: str,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    packed: Any,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    names = parameter_names(model)
    own = [[_name_of(parameter, names) for parameter in group["params"]] for group in optimizer.param_groups]
    saved = [group["parameters"] for group in packed["groups"]]
    if own != saved:
        raise _mismatch(f"parameter groups of optimizer {name!r}", saved, own)
    order = {member: number for number, member in enumerate(itertools.chain.from_iterable(own))}
    found = {
        member: {slot: unpack(value, tensors) for slot, value in slots} for member, slots in packed["state"].items()
    }
    groups = [unpack(group["rest"], tensors) for group in packed["groups"]]
    check_recurrence(optimizer.param_groups, groups)
    for member, slots in found.items():
        check_moments(slots, member)
    _check_slots(name, optimizer, found, {member: parameter for parameter, member in names.items()})
    optimizer.load_state_dict(
        {
            "state": {order[member]: slots for member, slots in found.items()},
            "param_groups": [
                {**rest, "params": [order[member] for member in group["parameters"]]}
                for rest, group in zip(groups, packed["groups"], strict=True)
            ],
        }
    )
    _own_slots(optimizer, {parameter: found.get(name, {}) for parameter, name in names.items()})


def _check_slots(
    name: str,
    optimizer: torch.optim.Optimizer,
    found: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, torch.Tensor],
) -> None:
    """Raise `CheckpointError` where a slot has not the shape of its parameter: a step would spread it over others. Only
    of torch's own optimizers is it known that it must."""
    if not type(optimizer).__module__.startswith("torch.optim.") or type(optimizer).__name__ in _OTHER_SHAPES:
        return
    for member, slots in found.items():
        own = tuple(parameters[member].shape) if member in parameters else None
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor) and value.ndim and tuple(value.shape) != own:
                raise _mismatch(f"shape of {slot} of {member!r} in optimizer {name!r}", tuple(value.shape), own)


def _own_slots(optimizer: torch.optim.Optimizer, found: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
    # torch's loading casts slots to their parameter's dtype, which is not exact where an optimizer keeps float32 for
    # bfloat16 parameters, and keeps the given tensor where nothing is to be cast, so that steps would change it.
    for parameter, slots in optimizer.state.items():
        for slot, loaded in slots.items():
            if isinstance(loaded, torch.Tensor):
                saved = found[parameter][slot]
                slots[slot] = saved.to(device=loaded.device, dtype=saved.dtype, copy=True)


def _name_of(parameter: torch.Tensor, names: Mapping[torch.Tensor, str]) -> str:
    if parameter not in names:
        raise CheckpointError(
            f"every parameter of an optimizer must belong to Training.model; one of shape {tuple(parameter.shape)} "
            f"does not. Put the module that holds it inside the model."
        )
    return names[parameter]


def _mismatch(what: str, saved: Any, own: Any) -> CheckpointError:
    def short(value: Any) -> str:
        text = repr(value)
        return text if len(text) < 300 else text[:300] + "..."

    return CheckpointError(
        f"the {what} that the program builds must be those of the checkpoint; the checkpoint has "
        f"{short(saved)}, the program {short(own)}. Was the program edited outside its own files?"
    )


def pack(tree: Any, prefix: str, tensors: dict[str, torch.Tensor]) -> Any:
    """A nested value as JSON, its tensors put into `tensors` under names that begin with `prefix`.

    >>> found = {}
    >>> pack({"a": (1, torch.zeros(2))}, "x", found), list(found)
    ({'__dict__': [['a', {'__tuple__': [1, {'__tensor__': 'x/a/1'}]}]]}, ['x/a/1'])
    """
    if isinstance(tree, torch.Tensor):
        while prefix in tensors:  # the keys "a/b" and "a" with "b" inside spell the same name
            prefix += "'"
        tensors[prefix] = tree.detach()
        return {"__tensor__": prefix}
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if isinstance(tree, float):
        return {"__float__": tree.hex()}  # exact, and NaN and infinities too
    if isinstance(tree, bytes):
        return {"__bytes__": base64.b64encode(tree).decode()}
    if isinstance(tree, numpy.generic):
        return pack(tree.item(), prefix, tensors)
    if isinstance(tree, numpy.ndarray):
        return {"__array__": pack(torch.from_numpy(tree.copy()), prefix, tensors)}
    if isinstance(tree, list | tuple):
        if _PLAIN.issuperset(map(type, tree)):  # as the hundreds of words of a random generator
            items = list(tree)
        else:
            items = [pack(item, f"{prefix}/{number}", tensors) for number, item in enumerate(tree)]
        return items if isinstance(tree, list) else {"__tuple__": items}
    if isinstance(tree, Mapping):
        return {
            "__dict__": [[_key(key, prefix), pack(value, f"{prefix}/{key}", tensors)] for key, value in tree.items()]
        }
    raise CheckpointError(
        f"what a checkpoint keeps must be tensors and plain data; {prefix} is a {type(tree).__name__}. "
        f"Keep it out of the state dict, or turn it into numbers and text."
    )


def unpack(packed: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `pack` was given.

    >>> found = {}
    >>> unpack(pack({"a": (1, 0.1)}, "x", found), found)
    {'a': (1, 0.1)}
    """
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((tag, value),) = packed.items()
    if tag == "__tensor__":
        return tensors[value]
    if tag == "__float__":
        return float.fromhex(value)
    if tag == "__bytes__":
        return base64.b64decode(value)
    if tag == "__array__":
        return unpack(value, tensors).cpu().numpy()
    if tag == "__tuple__":
        return tuple(unpack(item, tensors) for item in value)
    return {unpack(key, tensors): unpack(item, tensors) for key, item in value}


def _key(key: Any, prefix: str) -> Any:
    if isinstance(key, torch.Tensor | numpy.ndarray):
        raise CheckpointError(f"the keys of what a checkpoint keeps must be plain data; one of {prefix} is a tensor.")
    return pack(key, prefix, {})
