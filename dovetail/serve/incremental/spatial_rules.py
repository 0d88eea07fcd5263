"""How a change passes through an operation: how far it reaches, and how that part of the output is computed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from dovetail.serve.incremental.base_values import BaseValues, call, name_of
from dovetail.serve.incremental.boxes import Reach, Window
from dovetail.serve.incremental.patches import Patch

aten = torch.ops.aten

# What computes each cell from the same cell alone, and does so wherever the cell is.
_CELLWISE = {
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "elu", "mish",
    "softplus", "neg", "abs", "exp", "sqrt", "clamp", "dropout", "feature_dropout", "clone", "contiguous", "detach",
    "alias", "batch_norm", "_to_copy", "to",
}  # fmt: skip
_JOINING = {"add", "sub", "mul", "div", "maximum", "minimum"}

Changes = Mapping[fx.Node, Patch]
"""What changed of an operation's inputs."""


class CellRule:
    """Of an operation that looks at no cell but its own, in one map or several of one size."""

    def reach(self, axis: int, inputs: Sequence[Reach], *, length: int) -> Reach:
        """What of the output, of `length` along an axis, depends on what changed of the inputs."""
        found = inputs[0]
        for other in inputs[1:]:
            found = found.hull(other, length=length)
        return found

    def compute(self, node: fx.Node, base: BaseValues, changes: Changes, rows: Reach, columns: Reach) -> Patch:
        """Compute the output on these rows and columns alone."""
        pictures = len(rows.starts)

        def value(each: fx.Node) -> Any:
            is_map = each in changes or (each in base.maps and base.cells(each) == base.cells(node))
            if not is_map:
                return base.value(each)
            return base.maps[each].cut(changes.get(each), rows, columns, pictures=pictures)

        return Patch(call(node, value), rows, columns)


class WindowRule(CellRule):
    """Of one that looks at a window; `margin` is what it takes to be beyond the input's border, and `unpadded` is the
    operation for an input that has its margin already."""

    def __init__(
        self, windows: Sequence[Window], *, margin: float, unpadded: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._windows, self._margin, self._unpadded = windows, margin, unpadded

    def reach(self, axis: int, inputs: Sequence[Reach], *, length: int) -> Reach:
        """The outputs whose windows look at the change."""
        return inputs[0].through(self._windows[axis], length=length)

    def compute(self, node: fx.Node, base: BaseValues, changes: Changes, rows: Reach, columns: Reach) -> Patch:
        """Compute the output on these rows and columns from the input that their windows look at."""
        ((source, patch),) = changes.items()
        before, behind, looked_at = [], [], []
        for axis, reach in enumerate((rows, columns)):
            window = self._windows[axis]
            _, stop = window.needed_cells(0, base.cells(node)[axis])
            before.append(window.padding)
            behind.append(max(0, stop - window.padding - base.cells(source)[axis]))
            looked_at.append(Reach(reach.starts * window.stride, window.needed_cells(0, reach.size)[1]))
        region = base.maps[source].cut(
            patch,
            *looked_at,
            pictures=len(rows.starts),
            margins=(before[1], behind[1], before[0], behind[0]),
            value=self._margin,
        )
        return Patch(self._unpadded(region), rows, columns)


def rule_of(node: fx.Node, base: BaseValues) -> CellRule | None:
    """How changes pass through an operation; None where that is not known."""
    name = name_of(node)
    maps = [each for each in node.all_input_nodes if each in base.maps]
    if any(base.maps[each].values.dim() != 4 for each in maps):
        return None
    if node.target is aten.conv2d.default and len(maps) == 1:
        return _convolution(node, base)
    if name in ("max_pool2d", "avg_pool2d"):
        return _pooling_rule(node, name)
    is_one_size = len({base.cells(each) for each in maps}) == 1
    if (name in _CELLWISE and len(maps) == 1) or (name in _JOINING and is_one_size):
        return CellRule()
    if name == "cat" and is_one_size and (node.args[1] if len(node.args) > 1 else 0) in (1, -3):
        return CellRule()
    return None


def _convolution(node: fx.Node, base: BaseValues) -> CellRule:
    given = _arguments(node)
    weight = base.value(given["weight"])
    bias = base.value(given["bias"]) if given.get("bias") is not None else None
    stride, dilation = list(_pair(given.get("stride", 1))), list(_pair(given.get("dilation", 1)))
    groups = given.get("groups", 1)

    def unpadded(region: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten.conv2d.default(region, weight, bias, stride, [0, 0], dilation, groups)
        return found

    windows = _windows(weight.shape[2:], stride, _pair(given.get("padding", 0)), dilation)
    return WindowRule(windows, margin=0.0, unpadded=unpadded)


def _pooling_rule(node: fx.Node, name: str) -> CellRule | None:
    given = _arguments(node)
    size, padding = list(_pair(given["kernel_size"])), _pair(given.get("padding", 0))
    stride = list(_pair(given["stride"])) if given.get("stride") else size
    dilation = list(_pair(given.get("dilation", 1)))
    windows = _windows(size, stride, padding, dilation)

    def largest(region: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten.max_pool2d.default(region, size, stride, [0, 0], dilation)
        return found

    def mean(region: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten.avg_pool2d.default(region, size, stride)
        return found

    if name == "max_pool2d":
        return WindowRule(windows, margin=-math.inf, unpadded=largest)
    is_padded = any(padding) and not given.get("count_include_pad", True)
    if given.get("ceil_mode") or given.get("divisor_override") is not None or is_padded:
        return None  # what a window is divided by depends on where it is
    return WindowRule(windows, margin=0.0, unpadded=mean)


def _windows(
    size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[Window]:
    return [
        Window(size=int(size[axis]), stride=stride[axis], padding=padding[axis], dilation=dilation[axis])
        for axis in (0, 1)
    ]


def _arguments(node: fx.Node) -> dict[str, Any]:
    """An operation's arguments by name; those that were not given are absent."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _pair(value: Any) -> tuple[int, int]:
    found = [value] if isinstance(value, int) else [int(each) for each in value]
    return found[0], found[-1]
