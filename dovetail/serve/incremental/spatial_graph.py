"""A model as a graph of operations, through which a change of its input is followed.

What has no rule is not refused: from there on whole feature maps are computed, by the operation itself.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import fx, nn

from dovetail.serve.incremental.base_values import BaseValues, call, in_place_of
from dovetail.serve.incremental.boxes import Reach
from dovetail.serve.incremental.patches import Patch
from dovetail.serve.incremental.spatial_rules import CellRule, rule_of
from dovetail.vocabulary import ProgramError

# Kernels of some devices take no more, and torch will not export a model for more than all of them take.
MOST_PICTURES = 1024

_Box = tuple[Reach, Reach]
"""Rows and columns."""


class SpatialGraph:
    """A model's operations, exported once for any number of pictures.

    Raises `ProgramError` where it cannot be exported, with torch's reason.
    """

    def __init__(self, model: nn.Module, base: torch.Tensor) -> None:
        exported = _export(model, torch.cat([base, base]))
        signature = exported.graph_signature
        if len(signature.user_outputs) != 1:
            raise ProgramError(
                f"a model must give one tensor to be computed in parts; this one gives {len(signature.user_outputs)}."
            )
        by_name = {node.name: node for node in exported.graph.nodes}
        self._input, self._output = by_name[signature.user_inputs[0]], by_name[signature.user_outputs[0]]
        self._nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
        self._last_use = _last_uses(self._nodes, self._output)
        self.crop = 1.0
        """Of the rows and columns of each map this part is computed at the most, the middle of what a change reaches;
        what is left out counts as unchanged."""
        self._base = BaseValues(_constants(exported))
        self.compute_base(base)
        self._rules = {node: rule_of(node, self._base) for node in self._nodes}
        none = Reach(numpy.zeros(1, dtype=int), 1)
        self._reachable = [node for node, _ in self._boxes(none, none)]

    def compute_base(self, base: torch.Tensor) -> None:
        """Keep what the model computes for a picture, of the size of the first."""
        self._base.compute(self._input, base, self._nodes)

    @property
    def base_output(self) -> torch.Tensor:
        """What the model gives for the base picture."""
        return self._base.maps[self._output].values

    def weights(self) -> numpy.ndarray:
        """How many weights each operation multiplies each cell of its output with, of those that a change reaches."""
        return numpy.array([self._base.weights(node) for node in self._reachable], dtype=float)

    def whole_cells(self) -> numpy.ndarray:
        """How many cells the outputs of the same operations have."""
        return numpy.array([math.prod(self._base.cells(node)) for node in self._reachable], dtype=float)

    def reach(self, changed: Reach, *, axis: int) -> numpy.ndarray:
        """How many cells of these outputs, along one axis, have to be computed for such pictures."""
        none = Reach(numpy.zeros(len(changed.starts), dtype=int), 1)
        path = self._boxes(*((changed, none) if axis == 0 else (none, changed)))
        return numpy.array(
            [self._base.cells(node)[axis] if box is None else box[axis].size for node, box in path], dtype=float
        )

    def run(self, patch: Patch) -> torch.Tensor:
        """What the model gives for pictures that differ from the base by this patch."""
        pictures = len(patch.values)
        changed: dict[fx.Node, Any] = {self._input: patch}
        for node in self._nodes:
            if any(each in changed for each in node.all_input_nodes):
                changed[node] = self._step(node, changed, pictures)
                if (overwritten := in_place_of(node)) is not None:
                    changed[overwritten] = changed[node]
            for each in self._last_use.get(node, ()):
                changed.pop(each, None)
        found: torch.Tensor = self._full_value(self._output, changed, pictures)
        return found

    def _step(self, node: fx.Node, changed: Mapping[fx.Node, Any], pictures: int) -> Any:
        """One operation, on patches where it has a rule, else on whole maps."""
        inputs = {each: changed[each] for each in node.all_input_nodes if each in changed}
        rule = self._rules[node]
        if rule is not None and all(isinstance(each, Patch) for each in inputs.values()):
            box = self._reach(node, rule, [(each.rows, each.columns) for each in inputs.values()])
            return rule.compute(node, self._base, inputs, *box)
        if node.target is torch.ops.aten.sym_size.int:
            of, axis = node.args
            assert isinstance(of, fx.Node)
            assert isinstance(axis, int)
            return pictures if axis == 0 else self._base.maps[of].values.shape[axis]
        return call(node, lambda each: self._full_value(each, changed, pictures))

    def _full_value(self, node: fx.Node, changed: Mapping[fx.Node, Any], pictures: int) -> Any:
        """What a node stands for, of all pictures."""
        value = changed.get(node)
        if isinstance(value, Patch):
            none = numpy.zeros(pictures, dtype=int)
            rows, columns = (Reach(none, length) for length in self._base.cells(node))
            return self._base.maps[node].cut(value, rows, columns, pictures=pictures)
        if value is not None:
            return value
        found = self._base.value(node)
        return found.expand(pictures, *found.shape[1:]) if node in self._base.maps else found

    def _boxes(self, rows: Reach, columns: Reach) -> Iterator[tuple[fx.Node, _Box | None]]:
        """Of each operation that a change of the input reaches, what it reaches of it; None where that is all."""
        boxes: dict[fx.Node, _Box | None] = {self._input: (rows, columns)}
        for node in self._nodes:
            inputs = [boxes[each] for each in node.all_input_nodes if each in boxes]
            if not inputs or node not in self._base.maps:
                continue
            rule, known = self._rules[node], [box for box in inputs if box is not None]
            boxes[node] = self._reach(node, rule, known) if rule and len(known) == len(inputs) else None
            if (overwritten := in_place_of(node)) is not None:
                boxes[overwritten] = boxes[node]
            yield node, boxes[node]

    def _reach(self, node: fx.Node, rule: CellRule, inputs: Sequence[_Box]) -> _Box:
        rows, columns = (
            rule.reach(axis, [box[axis] for box in inputs], length=length).crop(math.ceil(self.crop * length))
            for axis, length in enumerate(self._base.cells(node))
        )
        return rows, columns


def _export(model: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(
            model, (example,), dynamic_shapes=({0: torch.export.Dim("pictures", min=1, max=MOST_PICTURES)},)
        )
    except Exception as error:  # whatever a program's own code raises while it is traced
        reason = str(error).strip().splitlines()
        raise ProgramError(
            f"a model must be traced to be computed in parts, and this one cannot be: {type(error).__name__}: "
            f"{reason[0] if reason else ''}"
        ) from error


def _constants(exported: torch.export.ExportedProgram) -> dict[str, Any]:
    """Parameters, buffers and constants of a model by the names that its graph has for them."""
    signature, held = exported.graph_signature, {**exported.state_dict, **exported.constants}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {name: held[of] for name, of in names.items()}


def _last_uses(nodes: Sequence[fx.Node], output: fx.Node) -> dict[fx.Node, list[fx.Node]]:
    """After which operation what another gave is no longer needed."""
    last = {each: node for node in nodes for each in node.all_input_nodes}
    found: dict[fx.Node, list[fx.Node]] = {}
    for each, node in last.items():
        if each is not output:
            found.setdefault(node, []).append(each)
    return found
