"""A model as a graph of operations, and how a change of its input passes through each of them.

What is not known here is not refused: from there on whole feature maps are computed, by the operation itself.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import fx, nn

from dovetail.serve.incremental.boxes import Reach, Window
from dovetail.serve.incremental.patches import BaseMap, Patch
from dovetail.vocabulary import ProgramError

aten = torch.ops.aten

# What computes each cell from the same cell alone, and does so wherever the cell is.
_CELLWISE = {
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "elu", "mish",
    "softplus", "neg", "abs", "exp", "sqrt", "clamp", "dropout", "feature_dropout", "clone", "contiguous", "detach",
    "alias", "batch_norm", "_to_copy", "to",
}  # fmt: skip
_JOINING = {"add", "sub", "mul", "div", "maximum", "minimum"}


class SpatialGraph:
    """A model's operations, exported once for any number of pictures.

    Raises `ProgramError` where it cannot be exported, with torch's reason.
    """

    def __init__(self, model: nn.Module, base: torch.Tensor) -> None:
        batch = torch.export.Dim("batch", min=1)
        example = torch.cat([base, base])
        try:
            exported = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
        except Exception as error:  # whatever a program's own code raises while it is traced
            raise ProgramError(
                f"a model must be traced to be computed in parts, and this one cannot be: {type(error).__name__}: "
                f"{str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            ) from error
        self._constants = _constants(exported)
        self._nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
        (self._input,) = (node for node in exported.graph.nodes if node.name in exported.graph_signature.user_inputs)
        outputs = exported.graph_signature.user_outputs
        if len(outputs) != 1:
            raise ProgramError(f"a model must give one tensor to be computed in parts; this one gives {len(outputs)}.")
        self._output = next(node for node in exported.graph.nodes if node.name == outputs[0])
        self._last_use = _last_uses(self._nodes, self._output)
        self._maps: dict[fx.Node, BaseMap] = {}
        self._scalars: dict[fx.Node, Any] = {}
        self.crop = 1.0
        """Of the rows and columns of each map this part is computed at the most, the middle of what a change reaches;
        what is left out counts as unchanged."""
        self.compute_base(base)
        self._rules = {node: _rule(node, self._base_value, self._maps.keys()) for node in self._nodes}

    @property
    def base_output(self) -> torch.Tensor:
        """What the model gives for the base picture."""
        return self._maps[self._output].values

    def weights(self) -> numpy.ndarray:
        """How many weights each operation multiplies each cell of its output with, of those that a change reaches."""
        return numpy.array([_weights(node, self._constants) for node in self._reachable()], dtype=float)

    def whole_cells(self) -> numpy.ndarray:
        """How many cells the outputs of the same operations have."""
        return numpy.array([math.prod(self._cells(node)) for node in self._reachable()], dtype=float)

    def reach(self, interval: Reach, *, axis: int) -> numpy.ndarray:
        """How many cells of these outputs, along one axis, have to be computed for such pictures."""
        none = Reach(numpy.zeros(len(interval.starts), dtype=int), 1)
        path = self._boxes(*((interval, none) if axis == 0 else (none, interval)))
        return numpy.array(
            [self._cells(node)[axis] if box is None else box[axis].size for node, box in path], dtype=float
        )

    def _reachable(self) -> list[fx.Node]:
        none = Reach(numpy.zeros(1, dtype=int), 1)
        return [node for node, _ in self._boxes(none, none)]

    def _cells(self, node: fx.Node) -> tuple[int, int]:
        shape = self._maps[node].values.shape
        return (shape[-2], shape[-1]) if len(shape) == 4 else (1, 1)

    def run(self, patch: Patch) -> torch.Tensor:
        """What the model gives for pictures that differ from the base by this patch."""
        pictures = len(patch.values)
        changed: dict[fx.Node, Any] = {self._input: patch}
        for node in self._nodes:
            if any(each in changed for each in node.all_input_nodes):
                changed[node] = self._step(node, changed, pictures)
                if _is_in_place(node):
                    changed[node.args[0]] = changed[node]  # type: ignore[index]
            for each in self._last_use.get(node, ()):
                changed.pop(each, None)
        found = changed.get(self._output)
        if found is None:
            return self.base_output.expand(pictures, *self.base_output.shape[1:])
        return self._whole(self._output, found, pictures)

    def compute_base(self, base: torch.Tensor) -> None:
        """Keep what the model computes for a picture, of the size of the first."""
        self._maps[self._input] = BaseMap(base)
        for node in self._nodes:
            args, kwargs = _filled(node, lambda each: self._base_value(each))
            value = node.target(*args, **kwargs)
            if isinstance(value, torch.Tensor):
                self._maps[node] = BaseMap(value)
            else:
                self._scalars[node] = value

    def _base_value(self, node: fx.Node) -> Any:
        if node in self._maps:
            return self._maps[node].values
        return self._scalars[node] if node in self._scalars else self._constants[node.name]

    def _step(self, node: fx.Node, changed: Mapping[fx.Node, Any], pictures: int) -> Any:
        """One operation, on patches where that is known, else on whole maps."""
        patches = {each: changed[each] for each in node.all_input_nodes if each in changed}
        rule = self._rules[node]
        if rule is None or not all(isinstance(each, Patch) for each in patches.values()):
            return self._whole_step(node, changed, pictures)
        rows, columns = self._reached(
            node, rule, {each: (patches[each].rows, patches[each].columns) for each in patches}
        )
        return rule.compute(self, node, patches, rows, columns, pictures)

    def _whole_step(self, node: fx.Node, changed: Mapping[fx.Node, Any], pictures: int) -> Any:
        if node.target is aten.sym_size.int:
            of, axis = node.args
            assert isinstance(of, fx.Node)
            assert isinstance(axis, int)
            return pictures if axis == 0 else self._maps[of].values.shape[axis]

        def value(each: fx.Node) -> Any:
            if each in changed:
                return self._whole(each, changed[each], pictures)
            found = self._base_value(each)
            if each in self._maps and isinstance(found, torch.Tensor):  # one picture's: the same for all
                return found.expand(pictures, *found.shape[1:])
            return found

        args, kwargs = _filled(node, value)
        return node.target(*args, **kwargs)

    def _whole(self, node: fx.Node, value: Any, pictures: int) -> Any:
        """A whole map of each picture."""
        if not isinstance(value, Patch):
            return value
        height, width = self._maps[node].values.shape[-2:]
        none = numpy.zeros(pictures, dtype=int)
        return self._maps[node].cut(value, Reach(none, height), Reach(none, width), pictures=pictures)

    def _boxes(self, rows: Reach, columns: Reach) -> Iterator[tuple[fx.Node, tuple[Reach, Reach] | None]]:
        """Of each operation that a change of the input reaches, what it reaches of it; None where that is all."""
        boxes: dict[fx.Node, tuple[Reach, Reach] | None] = {self._input: (rows, columns)}
        for node in self._nodes:
            reached = {each: boxes[each] for each in node.all_input_nodes if each in boxes}
            if not reached or node not in self._maps:
                continue
            rule = self._rules[node]
            known = {each: box for each, box in reached.items() if box is not None}
            boxes[node] = self._reached(node, rule, known) if rule and len(known) == len(reached) else None
            if _is_in_place(node):
                boxes[node.args[0]] = boxes[node]  # type: ignore[index]
            yield node, boxes[node]

    def _reached(
        self, node: fx.Node, rule: "_CellRule", inputs: Mapping[fx.Node, tuple[Reach, Reach]]
    ) -> tuple[Reach, Reach]:
        found = []
        for axis, length in enumerate(self._maps[node].values.shape[-2:]):
            reached = rule.reached(axis, [box[axis] for box in inputs.values()], length=length)
            found.append(reached.cropped(math.ceil(self.crop * length)))
        return found[0], found[1]


class _CellRule:
    """How a change passes through an operation that looks at no cell but its own."""

    def reached(self, axis: int, inputs: Sequence[Reach], *, length: int) -> Reach:
        """What of the output along one axis depends on what changed of the inputs."""
        found = inputs[0]
        for other in inputs[1:]:
            found = found.hull(other, length=length)
        return found

    def compute(
        self,
        graph: SpatialGraph,
        node: fx.Node,
        patches: Mapping[fx.Node, Patch],
        rows: Reach,
        columns: Reach,
        pictures: int,
    ) -> Patch:
        """That part of the output."""

        def value(each: fx.Node) -> Any:
            base = graph._maps.get(each)
            if base is None or base.values.dim() < 4 or (base.values.shape[-2:] == (1, 1) and each not in patches):
                return graph._base_value(each)
            return base.cut(patches.get(each), rows, columns, pictures=pictures)

        args, kwargs = _filled(node, value)
        return Patch(node.target(*args, **kwargs), rows, columns)


class _WindowRule(_CellRule):
    """How it passes through one that looks at a window; `margin` is what it takes to be beyond the input's border."""

    def __init__(self, windows: tuple[Window, Window], *, margin: float, unpadded: Callable[..., Any]) -> None:
        self._windows, self._margin, self._unpadded = windows, margin, unpadded

    def reached(self, axis: int, inputs: Sequence[Reach], *, length: int) -> Reach:
        """What windows of the output look at the change."""
        return inputs[0].through(self._windows[axis], length=length)

    def compute(
        self,
        graph: SpatialGraph,
        node: fx.Node,
        patches: Mapping[fx.Node, Patch],
        rows: Reach,
        columns: Reach,
        pictures: int,
    ) -> Patch:
        """The outputs of those windows."""
        ((source, patch),) = patches.items()
        margins: list[int] = []
        boxes: list[Reach] = []
        for axis, interval in ((1, columns), (0, rows)):
            window, length = self._windows[axis], graph._maps[node].values.shape[-2:][axis]
            _, stop = window.needed(0, length)
            behind = max(0, stop - window.padding - graph._maps[source].values.shape[-2:][axis])
            margins += [window.padding, behind]
            first, last = window.needed(0, interval.size)
            boxes.append(Reach(interval.starts * window.stride, last - first))
        left, right, above, below = margins
        region = graph._maps[source].cut(
            patch, boxes[1], boxes[0], pictures=pictures, margins=(left, right, above, below), value=self._margin
        )
        return Patch(self._unpadded(region), rows, columns)


def _rule(node: fx.Node, value: Callable[[fx.Node], Any], maps: Any) -> _CellRule | None:
    """How changes pass through an operation; None where that is not known."""
    name = _name(node)
    tensors = [each for each in node.all_input_nodes if each in maps]
    shapes = [tuple(value(each).shape) for each in tensors]
    if any(len(shape) != 4 for shape in shapes):
        return None
    if name == "conv2d" and node.target is aten.conv2d.default and len(tensors) == 1:
        return _convolution(node, value)
    if name in ("max_pool2d", "avg_pool2d"):
        return _pooling(node, name)
    if name in _CELLWISE and len(tensors) == 1:
        return _CellRule()
    if name in _JOINING and len({shape[-2:] for shape in shapes if shape[-2:] != (1, 1)}) == 1:
        return _CellRule() if all(shape[-2:] != (1, 1) or maps is None for shape in shapes) else None
    if name == "cat" and (node.args[1] if len(node.args) > 1 else 0) in (1, -3):
        return _CellRule()
    return None


def _convolution(node: fx.Node, value: Callable[[fx.Node], Any]) -> _CellRule:
    _source, weight, bias, stride, padding, dilation, groups = _arguments(
        node, ["input", "weight", "bias", "stride", "padding", "dilation", "groups"], [None, None, None, 1, 0, 1, 1]
    )
    kernel, offset = value(weight), value(bias) if bias is not None else None
    stride, padding, dilation = map(_pair, (stride, padding, dilation))
    windows = tuple(
        Window(size=kernel.shape[2 + axis], stride=stride[axis], padding=padding[axis], dilation=dilation[axis])
        for axis in (0, 1)
    )

    def unpadded(region: torch.Tensor) -> torch.Tensor:
        return aten.conv2d.default(region, kernel, offset, list(stride), [0, 0], list(dilation), groups)

    return _WindowRule(windows, margin=0.0, unpadded=unpadded)  # type: ignore[arg-type]


def _pooling(node: fx.Node, name: str) -> _CellRule | None:
    if name == "max_pool2d":
        names, absent = ["input", "kernel", "stride", "padding", "dilation", "ceil"], [None, None, [], 0, 1, False]
        _, size, stride, padding, dilation, _ = _arguments(node, names, absent)
    else:
        names = ["input", "kernel", "stride", "padding", "ceil", "counts_padding", "divisor"]
        _, size, stride, padding, ceil, counts, divisor = _arguments(
            node, names, [None, None, [], 0, False, True, None]
        )
        if ceil or divisor is not None or (not counts and any(_pair(padding))):
            return None  # what a window is divided by depends on where it is
        dilation = 1
    size, padding, dilation = map(_pair, (size, padding, dilation))
    stride = _pair(stride) if stride else size
    windows = tuple(
        Window(size=size[axis], stride=stride[axis], padding=padding[axis], dilation=dilation[axis]) for axis in (0, 1)
    )

    def largest(region: torch.Tensor) -> torch.Tensor:
        return aten.max_pool2d.default(region, list(size), list(stride), [0, 0], list(dilation))

    def mean(region: torch.Tensor) -> torch.Tensor:
        return aten.avg_pool2d.default(region, list(size), list(stride))

    is_largest = name == "max_pool2d"
    return _WindowRule(  # type: ignore[arg-type]
        windows, margin=-math.inf if is_largest else 0.0, unpadded=largest if is_largest else mean
    )


def _weights(node: fx.Node, constants: Mapping[str, Any]) -> int:
    is_weighted = _name(node) in ("conv2d", "linear")
    weight = constants.get(getattr(node.args[1], "name", "")) if is_weighted else None
    return int(weight.numel()) if weight is not None else 0


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1].rstrip("_") if schema is not None and "::" in schema.name else ""


def _is_in_place(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name.endswith("_") and not schema.name.endswith("__")


def _arguments(node: fx.Node, names: Sequence[str], absent: Sequence[Any]) -> list[Any]:
    """An operation's arguments in the order of its schema, with what it takes where one is not given."""
    given = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))  # type: ignore[union-attr]
    given |= node.kwargs
    order = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return [given.get(name, default) for name, default in zip(order, absent, strict=False)][: len(names)]


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    found = [int(each) for each in value]
    return (found[0], found[0]) if len(found) == 1 else (found[0], found[1])


def _filled(node: fx.Node, value: Callable[[fx.Node], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = fx.map_arg((node.args, node.kwargs), value)
    return args, kwargs


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
    last: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        for each in node.all_input_nodes:
            last[each] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for each, node in last.items():
        if each is not output:
            found.setdefault(node, []).append(each)
    return found
