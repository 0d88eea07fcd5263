"""Whether tasks are one program but for numbers that a stack holds per task, and where they differ if not.

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

# A rate of dropout may differ: each member's masks are drawn with its own.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_OF_MODULES = {"_parameters", "_buffers", "_modules"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size)


def difference(one: Any, other: Any, *, what: str) -> str | None:
    """Where two values differ, in words that begin with `what`, or None where they are the same.

    >>> difference({"heads": 4}, {"heads": 8}, what="model")
    "model['heads'] is 4 against 8"
    """
    return next(_differences(one, other, what, set()), None)


def models_differ(one: nn.Module, other: nn.Module) -> str | None:
    """Where two models differ in more than the values of their parameters and buffers.

    >>> models_differ(nn.Linear(2, 3), nn.Linear(2, 4))
    'the model.out_features is 3 against 4'
    """
    names, others = dict(one.named_modules()), dict(other.named_modules())
    if names.keys() != others.keys():
        (name, *_) = sorted(names.keys() ^ others.keys())
        return f"only one of the models has a module {name!r}"
    found = (_modules_differ(module, others[name], name) for name, module in names.items())
    return next((words for words in found if words), None) or _shapes_differ(one, other)


def _modules_differ(one: nn.Module, other: nn.Module, name: str) -> str | None:
    what = f"the model's {name!r}" if name else "the model"
    if type(one) is not type(other):
        return f"{what} is a {type(one).__name__} against a {type(other).__name__}"
    attributes, others = (_attributes(module) for module in (one, other))
    if attributes.keys() != others.keys():
        (first, *_) = sorted(attributes.keys() ^ others.keys())
        return f"only one of the models has {what}.{first}"
    seen: set[tuple[int, int]] = set()
    pairs = ((f"{what}.{key}", value, others[key]) for key, value in attributes.items())
    return next((words for path, value, own in pairs for words in _differences(value, own, path, seen)), None)


def _attributes(module: nn.Module) -> dict[str, Any]:
    aside = _OF_MODULES | ({"p"} if type(module) in DROPOUTS else set())
    return {name: value for name, value in vars(module).items() if name not in aside}


def _shapes_differ(one: nn.Module, other: nn.Module) -> str | None:
    for kind in ("parameters", "buffers"):
        mine, others = (dict(getattr(model, f"named_{kind}")(remove_duplicate=False)) for model in (one, other))
        if mine.keys() != others.keys():
            return f"only one of the models has {sorted(mine.keys() ^ others.keys())[0]!r} among its {kind}"
        for name, tensor in mine.items():
            look = [(tuple(each.shape), each.dtype, each.requires_grad) for each in (tensor, others[name])]
            if look[0] != look[1]:
                return f"{name!r} is {_of_tensor(tensor)} against {_of_tensor(others[name])}"
    ties = [[names for names in _ties(model) if len(names) > 1] for model in (one, other)]
    return None if ties[0] == ties[1] else f"the models tie different parameters: {ties[0]} against {ties[1]}"


def _ties(model: nn.Module) -> list[list[str]]:
    found: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(parameter, []).append(name)
    return list(found.values())


def _of_tensor(tensor: torch.Tensor) -> str:
    words = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return words if tensor.requires_grad else f"{words}, frozen"


def _differences(one: Any, other: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    if one is other or (id(one), id(other)) in seen:
        return
    seen.add((id(one), id(other)))
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


def _parts_differ(one: Any, other: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
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
        if words := models_differ(one, other):
            yield f"{path}: {words}"
        for name, tensor in one.state_dict().items():
            yield from _differences(tensor, other.state_dict()[name], f"{path}.{name}", seen)
    else:
        yield from _objects_differ(one, other, path, seen)


def _functions_differ(
    one: types.FunctionType, other: types.FunctionType, path: str, seen: set[tuple[int, int]]
) -> Iterator[str]:
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


def _mappings_differ(one: Any, other: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    if list(one) != list(other):
        yield f"{path} has the keys {list(one)[:8]} against {list(other)[:8]}"
        return
    for key, value in one.items():
        yield from _differences(value, other[key], f"{path}[{key!r}]", seen)


def _objects_differ(one: Any, other: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
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
