"""What each operation of a model gave for the base picture."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from dovetail.serve.incremental.patches import BaseMap


class BaseValues:
    """Feature maps and whatever else operations give, and the model's own weights, by the nodes of its graph."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.maps: dict[fx.Node, BaseMap] = {}
        self._others: dict[fx.Node, Any] = {}
        self._constants = constants

    def compute(self, source: fx.Node, base: torch.Tensor, nodes: Iterable[fx.Node]) -> None:
        """Run all operations for one picture."""
        self.maps[source] = BaseMap(base)
        for node in nodes:
            value = call(node, self.value)
            if isinstance(value, torch.Tensor):
                self.maps[node] = BaseMap(value)
            else:
                self._others[node] = value

    def value(self, node: fx.Node) -> Any:
        """The value that a node of the graph has for the base picture."""
        if node in self.maps:
            return self.maps[node].values
        return self._others[node] if node in self._others else self._constants[node.name]

    def cells(self, node: fx.Node) -> tuple[int, int]:
        """Rows and columns of a feature map; one of each of anything else."""
        shape = self.maps[node].values.shape
        return (shape[-2], shape[-1]) if len(shape) == 4 else (1, 1)

    def weights(self, node: fx.Node) -> int:
        """How many weights an operation multiplies each cell of its output with."""
        is_weighted = name_of(node) in ("conv2d", "linear")
        weight = self._constants.get(getattr(node.args[1], "name", "")) if is_weighted else None
        return int(weight.numel()) if weight is not None else 0


def call(node: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
    """An operation's result, of arguments as `value` gives them."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def name_of(node: fx.Node) -> str:
    """The name of torch's operation, without what says that it works in place; empty where it is none."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1].rstrip("_") if schema is not None and "::" in schema.name else ""


def in_place_of(node: fx.Node) -> fx.Node | None:
    """What an operation changes, where it works in place."""
    schema = getattr(node.target, "_schema", None)
    is_in_place = schema is not None and schema.name.endswith("_") and not schema.name.endswith("__")
    return node.args[0] if is_in_place and isinstance(node.args[0], fx.Node) else None
