"""Cutting a model: watch one call, divide it into stages, make a piece of each, and rehearse them on that call.

Names of layers are those of profiles: the module's path, `path#2` for its second call. Joins (`path+1`) of a profile
go with the latest layer that they join, wherever they are listed.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dovetail.train.cutting.generator_states import generator_states
from dovetail.train.cutting.interceptor import visible_modules
from dovetail.train.cutting.model_calls import ModelCall, tensors_in
from dovetail.train.cutting.pieces import Cut, Like, Piece
from dovetail.train.cutting.record import Record, Value
from dovetail.train.cutting.recorder import named_tensors, untouched, watch
from dovetail.train.cutting.replay_plan import ReplayPlan, plan
from dovetail.train.cutting.sequential_piece import SequentialPiece
from dovetail.train.cutting.stage_assignment import StageAssignment, divide, layer_events
from dovetail.train.cutting.tensor_layouts import TensorLayout
from dovetail.train.cutting.traced_piece import OUTPUT, RANDOM, TracedPiece
from dovetail.vocabulary import TechniqueRefused


def equal(model: nn.Module, call: ModelCall, count: int) -> tuple[tuple[str, ...], ...]:
    """Layers in `count` stages of about as many layers each.

    >>> equal(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ModelCall(args=(torch.ones(1, 2),)), 2)
    (('0',), ('1', '2'))
    """
    with untouched(model):
        names = [event.name for event in layer_events(watch(model, call)[0]) if event.is_whole]
    if not 1 <= count <= len(names):
        raise TechniqueRefused(
            f"a model must have a layer for each stage; it has {len(names)} layers, and {count} stages are asked for."
        )
    bounds = [number * len(names) // count for number in range(count + 1)]
    return tuple(tuple(names[start:end]) for start, end in itertools.pairwise(bounds))


def cut(model: nn.Module, call: ModelCall, *, stages: Sequence[Sequence[str]]) -> Cut:
    """The model in pieces, one for each of `stages`: names of layers, or of modules that hold layers.

    The example call is made under what training runs under (autocast, training mode), twice: once whole and once in
    pieces, whose outputs must be the same bits where nothing was drawn. The model is left as it was.

    >>> model, call = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ModelCall(args=(torch.ones(1, 2),))
    >>> made = cut(model, call, stages=[["0"], ["1"]])
    >>> middle = made.pieces[0](made.inputs(call))
    >>> torch.equal(made.pieces[1](middle)["output"], model(*call.args)), made.pieces[1].takes
    (True, ('0:1.0',))
    """
    with untouched(model):
        record, output, tensors = watch(model, call)
        division = divide(record, stages, _given_values(record))
        gradients = _gradients(output, division, tensors)
    placed = _place_tensors(model, division)
    plans = [plan(division, number, gradients=gradients) for number in range(len(stages))]
    pieces = tuple(_piece(model, call, division, each, placed[each.stage]) for each in plans)
    users = {name: tuple(n for n, names in enumerate(placed) if name in names) for name in named_tensors(model)}
    made = Cut(
        pieces=pieces,
        shared={name: numbers for name, numbers in users.items() if len(numbers) > 1},
        example=call,
        is_ordered=division.is_ordered(),
    )
    _rehearse(model, made, record, output)
    return made


def _given_values(record: Record) -> list[Value]:
    top = record.events[0]
    inputs = [value for value in record.inputs if value is not None]
    same = [leaf.place for leaf in top.outputs if hasattr(leaf, "place")]
    return [leaf for leaf in top.outputs if isinstance(leaf, Value)] + [inputs[place] for place in same]


def _place_tensors(model: nn.Module, division: StageAssignment) -> list[set[str]]:
    """Names of the parameters and buffers of each stage; what no stage uses goes with the module that holds it."""
    found: list[set[str]] = [set() for _ in range(division.count)]
    for event, stage in division.stage.items():
        found[stage] |= event.held
    first: dict[str, int] = {}
    for event in division.record.events:
        stages = [division.stage[each] for each in division.inside(event) if each in division.stage]
        if event.module is not None and stages:
            first.setdefault(event.path, min(stages))
    for name in named_tensors(model).keys() - set().union(*found):
        path = name
        while path and path not in first:
            path = path.rpartition(".")[0]
        found[first.get(path, 0)].add(name)
    return found


def _gradients(
    output: Any, division: StageAssignment, tensors: Mapping[Value, torch.Tensor]
) -> dict[Value, TensorLayout | None]:
    """How the gradients of values that cross lie in memory."""
    ends = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    crossing = {value for taken in division.takes[1:] for value in taken if tensors[value].requires_grad}
    values = [value for value in tensors if value in crossing]
    if not ends or not values:
        return {}
    starts = [torch.ones_like(end, memory_format=torch.contiguous_format) for end in ends]
    found = torch.autograd.grad(ends, [tensors[value] for value in values], starts, allow_unused=True)
    return {value: TensorLayout.of(each) for value, each in zip(values, found, strict=True) if each is not None}


def _piece(model: nn.Module, call: ModelCall, division: StageAssignment, made: ReplayPlan, names: set[str]) -> Piece:
    stage = made.stage
    seen = {made.events[n].what for n in made.steps}
    likes = {name: division.like(value, stage=max(stage - 1, 0)) for name, value in made.takes.items()}
    likes |= {name: division.like(value, stage=stage) for name, value in made.gives.items()}
    if made.takes_random or made.gives_random:
        likes[RANDOM] = Like(shape=tuple(generator_states().shape), dtype=torch.uint8, requires_grad=False)
    own = {name: tensor for name, tensor in named_tensors(model).items() if name in names}
    if SequentialPiece.serves(model, made):
        return SequentialPiece(model, made, held=own, likes=likes)
    modules = {path: module for path, module in visible_modules(model).items() if module in seen}
    return TracedPiece(model, call, made, modules=modules, held=own, likes=likes)


def _rehearse(model: nn.Module, made: Cut, record: Record, output: Any) -> None:
    """Run the pieces on the example call: whatever they refuse is refused now."""
    values: dict[str, Any] = dict(made.inputs(made.example))
    with untouched(model), torch.no_grad():
        for piece in made.pieces:
            values = piece({name: value.detach() for name, value in values.items()})
            for name in piece.gives if piece is not made.pieces[-1] else ():
                if _shape_and_dtype(values[name]) != (piece.likes[name].shape, piece.likes[name].dtype):
                    raise TechniqueRefused(
                        f"stage {made.pieces.index(piece)} gave {name!r} unlike in the example call."
                    )
    ours, whole = tensors_in(values[OUTPUT]), tensors_in(output)
    same = [_is_same(one, other, drew=record.drew) for one, other in zip(ours, whole, strict=True)]
    if not all(same) or pytree.tree_structure(values[OUTPUT]) != pytree.tree_structure(output):
        raise TechniqueRefused(
            "the pieces of a model must together give what the whole gives; on the example call they do not. The model "
            "keeps something between calls or modules that is no tensor, parameter or buffer. Keep the model whole."
        )


def _shape_and_dtype(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _is_same(one: torch.Tensor, other: torch.Tensor, *, drew: bool) -> bool:
    if drew:
        return _shape_and_dtype(one) == _shape_and_dtype(other)
    return torch.equal(one, other) or bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
