"""Which family a training belongs to: tasks of one family do the same work at the same speed.

The family is a digest of what a program built: its module tree and code, the shapes of its tensors and of its
first batch, how a step is taken, and the versions underneath. Learning rates, decays, betas, rates of dropout and
seeds are not in it, so a sweep over them is measured once; what does change the work changes the family, so a stale
profile is never used. Knows torch; knows nothing of files or processes.
"""

import hashlib
import json
import platform
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from dovetail.feeds import Shards, digest
from dovetail.profile.batch_structure import batch_bytes, structure
from dovetail.profile.source_text import Sources, package_of, without_addresses
from dovetail.train.base import Training
from dovetail.train.compiled_programs import runs_compiled
from dovetail.train.numeric import approximations_of
from dovetail.train.postponed_compiler import is_compiled
from dovetail.train.schedulers import schedulers_of
from dovetail.train.shard_evaluation import ShardEvaluation
from dovetail.vocabulary import Fingerprint

__all__ = ["FORMAT", "batch_bytes", "fingerprint", "versions"]

FORMAT = 3  # raise it whenever the digest takes in something else
_COUNTS = ("history_size", "max_eval", "max_iter", "ns_steps")  # how often an optimizer's step does its work


def fingerprint(training: Training, batch: Any) -> Fingerprint:
    """What planning needs to know of a training before it is measured. `batch` is its first.

    >>> def build(learning_rate, width):
    ...     model = nn.Linear(2, width)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    ...     return Training(model=model, batches=[1], loss=lambda m, b: m(b).mean(), optimizer=optimizer)
    >>> one, other, wide = (fingerprint(build(*p), torch.ones(3, 2)).family for p in [(0.1, 4), (0.2, 4), (0.1, 5)])
    >>> one == other, one == wide
    (True, False)
    """
    text = json.dumps(_content(training, batch), sort_keys=True)
    return Fingerprint(
        family=hashlib.sha256(text.encode()).hexdigest()[:16],
        steps_per_epoch=training.steps_per_epoch(),
        evaluates=training.evaluate is not None,
        shards=training.batches.facts(accumulate=training.accumulate) if isinstance(training.batches, Shards) else None,
        evaluation=training.evaluate.shards.facts() if isinstance(training.evaluate, ShardEvaluation) else None,
        evaluate_every=training.evaluate_every,
        allow=tuple(sorted(training.allow)),
        approximations=approximations_of(training),
    )


def versions(training: Training) -> str:
    """Python, torch, and every package that the model's and the optimizers' classes come from.

    >>> model = nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> "torch" in versions(Training(model=model, batches=[], loss=print, optimizer=optimizer))
    True
    """
    things = [*training.model.modules(), *training.optimizers().values()]
    packages = {package_of(base) for kind in {type(thing) for thing in things} for base in kind.__mro__}
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in packages | {"torch"}}
    listed = [f"{name} {version}" for name, version in sorted(found.items()) if isinstance(version, str)]
    return ", ".join([f"python {platform.python_version()}", *listed])


def _content(training: Training, batch: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "modules": [_module(name, module) for name, module in training.model.named_modules()],
        "tensors": _tensors(training.model),
        "code": _code(training),
        "batch": structure(batch),
        "optimizers": {name: _optimizer(each, training.model) for name, each in training.optimizers().items()},
        **_compiled(training),
        "schedule": type(training.schedule).__qualname__,
        **({"schedules": _schedulers(training)} if training.schedules else {}),
        "step": [
            training.accumulate,
            training.clip_norm is not None,
            training.precision,
            *([training.timetable] if training.timetable else ()),
            *([sorted(training.allow)] if training.allow else ()),
        ],
        # Of one family are tasks that can take each other's place in a gang: those that share must read the same.
        **({"shares": shared_name(training, batch)} if training.shares else {}),
        "rhythm": [training.evaluate_every, training.steps_per_epoch()],
        "versions": versions(training),
    }


def _schedulers(training: Training) -> list[list[str]]:
    found = schedulers_of(training).items()
    return [[name, type(each.scheduler).__qualname__, each.every, each.metric or ""] for name, each in found]


def shared_name(training: Training, batch: Any) -> str:
    """What names the batches that a training shares, its first one included; empty where it shares none."""
    return f"{training.shares} {digest(batch)}" if training.shares else ""


def _module(name: str, module: nn.Module) -> list[str]:
    # How much a dropout drops is no matter of time, but whether it does.
    told = (
        f"drops={bool(module.p)}, inplace={module.inplace}" if isinstance(module, _DropoutNd) else module.extra_repr()
    )
    return [name, _class_name(type(module)), without_addresses(told)]


def _compiled(training: Training) -> dict[str, list[str]]:
    modules = [name for name, module in training.model.named_modules() if is_compiled(module)]
    functions = [name for name in ("loss", "evaluate", "step") if runs_compiled(getattr(training, name))]
    return {"compiled": [*modules, "", *functions]} if modules or functions else {}


def _class_name(cls: type) -> str:
    # The user's own module may be `__main__` in one process and `sweep` in the next.
    return f"{cls.__module__}.{cls.__qualname__}" if package_of(cls) == "torch" else cls.__qualname__


def _tensors(model: nn.Module) -> list[list[Any]]:
    first: dict[torch.Tensor, str] = {}
    found = []
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            tied_to = first.setdefault(tensor, name)
            # A lazy module's tensors have no shape before its first batch.
            shape = None if nn.parameter.is_lazy(tensor) else list(tensor.shape)
            found.append([name, tied_to, shape, str(tensor.dtype), tensor.requires_grad])
    return found


def _code(training: Training) -> list[list[Any]]:
    sources = Sources()
    # A dict keeps the order of the modules, which a set of classes does not.
    for kind in dict.fromkeys(type(module) for module in training.model.modules()):
        sources.add(kind)
    found = [
        [name, sources.attributes(module)]
        for name, module in training.model.named_modules()
        if package_of(type(module)) != "torch"  # torch's modules tell all in extra_repr
    ]
    for optimizer in training.optimizers().values():
        sources.add(type(optimizer))
    evaluate = training.evaluate.measure if isinstance(training.evaluate, ShardEvaluation) else training.evaluate
    for function in (training.loss, evaluate, training.step, *training.callbacks):
        if function is not None:
            sources.add(function)
    return [*found, *sources.texts()]


def _optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[Any]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [
        [[names.get(parameter, "") for parameter in group["params"]], _flags(group)] for group in optimizer.param_groups
    ]
    return [_class_name(type(optimizer)), groups]


def _flags(group: dict[str, Any]) -> dict[str, Any]:
    """What in an optimizer's options decides which operations run, and not only with which numbers."""
    flags = {key: value for key, value in group.items() if value is None or isinstance(value, bool | str)}
    counts = {key: group[key] for key in _COUNTS if key in group}
    return {**flags, **counts, "momentum": bool(group.get("momentum", False))}
