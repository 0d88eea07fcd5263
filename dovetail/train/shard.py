"""The technique `shard`: one task over several devices, each of which holds a part of every weight, of its gradient and
of its optimizer's state, and a part of every batch's rows.

torch's `fully_shard` (FSDP2): each block's weights are gathered as it computes and given up afterwards. The optimizer
is the program's own, on sharded parameters. Checkpoints are gathered one tensor at a time, and loaded so too.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from dovetail.train.base import NO_KNOBS, Knobs, Members, SessionMember, TrainingSession
from dovetail.train.ranked_session import share_state
from dovetail.train.ranks import RankedTechnique, Ranks
from dovetail.train.rowwise_session import RowwiseSession, WholeForward, refuse_rows
from dovetail.train.state import TrainingState, capture, restore
from dovetail.train.weights import find_hooked, sites, to_half
from dovetail.vocabulary import TechniqueRefused

# A module of at least this share of a model's bytes is worth gathering by itself.
_BLOCK_SHARE = 1 / 64


class Shard(RankedTechnique):
    """One task, a part of it on each device."""

    name = "shard"
    exactness = (
        "equal to resident up to the order of sums in the mean over a batch's rows and in the norm of gradients "
        "(losses within 1e-4 over a hundred steps in fp32), dropout included; bit-equal to itself at a given number of "
        "ranks"
    )

    def refuse(self, members: Members) -> str | None:
        """What depends on a whole batch, and what shows only in the first step, is refused there."""
        if reason := refuse_rows(members, name=self.name):
            return reason
        if (hooks := find_hooked(members[0].training.model)) is not None:
            return f"gradients must be seen by the optimizer alone; parameter {hooks!r} has hooks"
        for name, parameter in members[0].training.model.named_parameters():
            if parameter.dim() == 0:
                return f"parameter {name!r} has no dimension to be cut along; give it one"
            if not parameter.is_contiguous():
                return f"parameter {name!r} is not contiguous in memory, so that it cannot be cut"
        return None

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """This rank's session at step 0. All ranks must have built the same weights."""
        self.check(members)
        return ShardSession(members[0], device=device, threads=threads, ranks=self.company())


SHARD = Shard()


class ShardSession(RowwiseSession):
    """A part of the model. All ranks compute, evaluate and gather together; rank 0 has what comes of it."""

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int, ranks: Ranks) -> None:
        training = member.training
        if ranks.differ(_checksum(training.model)):
            raise TechniqueRefused(
                "a program must build the same weights in every process; this one does not. Seed what it draws."
            )
        before = dict(training.model.named_parameters())
        self._whole = _shard_model(training.model, device=device, precision=training.precision)
        _repoint(training.optimizers().values(), before, dict(training.model.named_parameters()))
        super().__init__(member, device=device, threads=threads, ranks=ranks)
        self._trained = [parameter for parameter in training.model.parameters() if parameter.requires_grad]

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics, computed by all ranks together."""
        if self._training.evaluate is None:
            return {}
        with self._together("evaluate"):
            return super().evaluate(member)

    def state(self, member: int = 0) -> TrainingState:
        """Everything, gathered on the host of rank 0; nothing on the others."""
        with self._together("state"):
            feed, random = self._cursor.state(), self._random.state()
            sharded = capture(self._training, step=self._step, feed=feed, random=random)
            tensors = {}
            for name, tensor in sharded.tensors.items():
                whole = _gather(tensor)
                if self._ranks.leads:
                    tensors[name] = whole.cpu()
            return TrainingState(step=self._step, tensors=tensors, values=sharded.values)

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from the state that rank 0 has; each rank keeps its part."""
        with self._together("load"):
            state = share_state(state, self._ranks, keep=_Cutter(self._training.model))
            feed, random = restore(self._training, state)
            self._cursor.restore(feed)
            self._random.restore(random)
            self._step = state.step

    def _run(self, action: Callable[..., Any], *arguments: Any) -> Any:
        with contextlib.nullcontext() if self._taken > 1 else _Reading(is_loss=True):
            return self._whole(action, *arguments)

    def _run_evaluation(self, evaluate: Callable[[nn.Module], Any]) -> Any:
        # One forward from beginning to end, and what it gathered is given up, for what comes next may be new weights.
        try:
            with _Reading(is_loss=False):
                return self._whole(evaluate)
        finally:
            self._whole.reshard()

    def _gathering(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()  # gradients are summed up in parts after every microbatch: whole ones are large

    def _parameters(self) -> list[nn.Parameter]:
        return self._trained


class _Reading(TorchFunctionMode):
    """Within, weights that are read while they are in parts, outside their modules' forward, are not taken for whole.
    An evaluation that looks at weights sees all of them; a loss that does is refused, for its gradient would not be
    averaged as the others are."""

    def __init__(self, *, is_loss: bool) -> None:
        super().__init__()
        self._is_loss = is_loss

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name not in ("__get__", "__set__") and any(map(_is_sharded, tree_leaves((args, kwargs)))):
            if self._is_loss:
                raise TechniqueRefused(
                    f"a weight must be used by the forward of the module that holds it, to be sharded; the loss, or "
                    f"another module, uses one in {name!r}. Use replicate, or one device."
                )
            args, kwargs = tree_map(_gather, (args, kwargs))
        return function(*args, **kwargs)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The modules whose weights are gathered by themselves: the elements of module lists and sequences, and other
    modules without modules of their own, each if it is large enough. What shares weights with anything outside it is
    none, because they must be there together.

    >>> towers = nn.Sequential(nn.Embedding(8, 4), *(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    >>> [type(block).__name__ for block in blocks(towers)]
    ['Embedding', 'Sequential', 'Sequential']
    """
    holders = {parameter: len(places) for parameter, places in sites(model).items()}
    least = _BLOCK_SHARE * sum(parameter.nbytes for parameter in holders)

    def is_block(module: nn.Module) -> bool:
        own = {parameter: len(places) for parameter, places in sites(module).items()}
        is_alone = all(count == holders[parameter] for parameter, count in own.items())
        return is_alone and sum(parameter.nbytes for parameter in own) >= max(1, least)

    def within(module: nn.Module) -> Iterator[nn.Module]:
        is_list = isinstance(module, nn.ModuleList | nn.Sequential)
        for child in module.children():
            has_forward = not isinstance(child, nn.ModuleList | nn.ModuleDict)
            if has_forward and (is_list or not any(True for _ in child.children())) and is_block(child):
                yield child
            else:
                yield from within(child)

    yield from within(model)


def _shard_model(model: nn.Module, *, device: torch.device, precision: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if precision == "bf16-pure":  # as on one device: bf16 copies of fp32 weights, floating inputs included
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        model.register_forward_pre_hook(to_half, with_kwargs=True)
    for block in list(blocks(model)):
        block.register_forward_hook(_copy_views)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(WholeForward(model), mesh=mesh, mp_policy=policy)


def _copy_views(module: nn.Module, positional: Any, output: Any) -> Any:
    """What a block gives, in memory of its own. FSDP hangs its work in backward on these tensors, and it falls off a
    view that is changed in place, as by ReLU(inplace=True): gradients would be wrong without a word."""

    def own(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) and value._is_view() else value

    return tree_map(own, output)


def _repoint(
    optimizers: Iterable[torch.optim.Optimizer],
    before: Mapping[str, nn.Parameter],
    after: Mapping[str, nn.Parameter],
) -> None:
    """Let optimizers have the sharded parameters in the places of those they were made with."""
    new: dict[torch.Tensor, nn.Parameter] = {before[name]: parameter for name, parameter in after.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new.get(parameter, parameter) for parameter in group["params"]]
        for parameter in list(optimizer.state):
            slots = optimizer.state.pop(parameter)
            sharded = new.get(parameter, parameter)
            optimizer.state[sharded] = {slot: _cut_like(value, sharded) for slot, value in slots.items()}


def _cut_like(value: Any, parameter: torch.Tensor) -> Any:
    """A tensor cut as its parameter is, if it is of its shape."""
    if not (isinstance(value, torch.Tensor) and _is_sharded(parameter) and value.shape == parameter.shape):
        return value
    return _cut(value, parameter)


def _cut(value: torch.Tensor, parameter: torch.Tensor) -> Any:
    """This rank's part of a tensor, of as many parts as its parameter is in."""
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = parameter
    whole = value.to(sharded.device)
    return distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)


class _Cutter:
    """Gives this rank's part of a tensor of the canonical state."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters(remove_duplicate=False))

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        # `model/<parameter>`, or `optimizer/<optimizer>/<slot>/<parameter>`.
        of_model, _, parameter_name = name.partition("/")
        slot = ""
        if of_model == "optimizer":
            *_, slot, parameter_name = parameter_name.split("/", 2)
        parameter = self._parameters.get(parameter_name) if of_model in ("model", "optimizer") else None
        if parameter is not None and slot.endswith("_scale") and _is_sharded(parameter):
            part: torch.Tensor = _cut(tensor, parameter)  # a scale of each block: as many in each part
            return part
        cut: torch.Tensor = _cut_like(tensor, parameter) if parameter is not None else tensor
        return cut


def _is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def _gather(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor
    return whole


def _checksum(model: nn.Module) -> str:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return repr([float(tensor.detach().sum(dtype=torch.float64)) for tensor in tensors])
