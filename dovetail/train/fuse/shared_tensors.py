"""What the members of a gang have in common: frozen parameters and buffers that are the same in all of them.

A sweep of adapters on one frozen base is many copies of that base until somebody looks. They are compared bit by bit,
once, and held once; the products with them then run for all members as one.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dovetail.train.base import Training
from dovetail.train.fuse.fused_program import StackLayout


def layout_of(trainings: Sequence[Training], *, compare: bool = True) -> StackLayout:
    """Which tensors have a row for each member. Without `compare`, frozen parameters are taken to be the same.

    >>> base = nn.Linear(2, 2).requires_grad_(False)
    >>> models = [nn.Sequential(base, nn.Linear(2, 1)) for _ in range(2)]
    >>> adapted = [Training(model=model, batches=[], loss=lambda model, batch: 0,
    ...                     optimizer=torch.optim.SGD(model[1].parameters(), lr=0.1)) for model in models]
    >>> layout_of(adapted).common
    ('0.weight', '0.bias')
    """
    models = [training.model for training in trainings]
    stepped = {parameter for group in _optimizer(trainings[0]).param_groups for parameter in group["params"]}
    trained, apart, common = [], [], []
    for name, parameter in models[0].named_parameters():
        if parameter.requires_grad and parameter in stepped:
            trained.append(name)
        elif not parameter.requires_grad and (not compare or _is_same(models, name)):
            common.append(name)
        else:
            apart.append(name)
    changing = _running_statistics(models[0])
    for name, buffer in models[0].named_buffers():
        if id(buffer) not in changing and _is_same(models, name):
            common.append(name)
        else:
            apart.append(name)
    return StackLayout(trained=tuple(trained), apart=tuple(apart), common=tuple(common))


def share_tensors(models: Sequence[nn.Module], names: Iterable[str], device: torch.device) -> None:
    """Move the first model to the device, and let the others' tensors of these names be the first one's."""
    models[0].to(device)
    for name in names:
        first = _find(models[0], name)
        for model in models[1:]:
            _find(model, name).data = first.data


def _is_same(models: Sequence[nn.Module], name: str) -> bool:
    first, *others = (_find(model, name).detach() for model in models)
    return all(first.data_ptr() == other.data_ptr() or torch.equal(first, other) for other in others)


def _find(model: nn.Module, name: str) -> torch.Tensor:
    owner, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(owner), last)
    return found


def _running_statistics(model: nn.Module) -> set[int]:
    """Buffers that training changes without anybody seeing it: running statistics."""
    norms = [module for module in model.modules() if isinstance(module, _NormBase) and module.training]
    return {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}


def _optimizer(training: Training) -> Any:
    return training.optimizer
