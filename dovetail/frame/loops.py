"""Nodes become loops: as few as their shapes and reductions allow, with calls of others' functions between them.

A loop runs over one shape and computes all that is wanted of it at once: values of maps, and reductions of them
(horizontal fusion); what only maps need is never stored (vertical fusion). Something is stored where a reduction or a
call stands between it and its use, where it is spread over a larger shape, or where a later loop would compute it
again and that takes longer than reading it. Pure; knows no back end.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dovetail.frame.nodes import FrameNode, Shape, merge_equal, walk
from dovetail.frame.operations import OPERATIONS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loop:
    """One loop over a shape. `body` is in order of computation and ends nowhere but in inputs; `rows` says that its
    reductions are along the last axis; `kept` are values of a block that a group-by reads."""

    shape: Shape
    rows: bool
    inputs: tuple[FrameNode, ...]
    numbers: tuple[FrameNode, ...]
    body: tuple[FrameNode, ...]
    outputs: tuple[FrameNode, ...]
    reductions: tuple[FrameNode, ...]
    kept: tuple[FrameNode, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopPlan:
    """Loops and calls in order. Values are looked up by node."""

    inputs: tuple[FrameNode, ...]
    steps: tuple[Loop | FrameNode, ...]
    outputs: tuple[FrameNode, ...]

    def loops(self) -> list[Loop]:
        return [step for step in self.steps if isinstance(step, Loop)]


def plan_loops(roots: Sequence[FrameNode], *, known: Callable[[FrameNode], bool] = FrameNode.is_leaf) -> LoopPlan:
    """The loops and calls that give these. Nodes that are `known` have a value already.

    >>> import numpy
    >>> from dovetail.frame.nodes import input_node, map_node
    >>> x = input_node(numpy.zeros(3))
    >>> sine = map_node("sin", numpy.sin, (x,))
    >>> plan = plan_loops([map_node("add", numpy.add, (sine, sine)), sine])
    >>> len(plan.steps), [node.name for node in plan.loops()[0].body]
    (1, ['sin', 'add'])
    """
    kept = [_as_input(root, known) for root in roots]
    outputs = merge_equal(kept)
    nodes = list(walk(outputs))
    stored = _stored_nodes(nodes, outputs)
    stage = _stages(nodes, stored)
    groups: dict[tuple[int, int, Shape, bool], list[FrameNode]] = {}
    for node in nodes:
        if node in stored:
            shape = node.args[0].shape if node.kind == "reduce" else node.shape
            key = (stage[node], int(node.kind != "call"), shape, node.axis is not None)
            groups.setdefault(key if node.kind != "call" else (*key[:2], (len(groups),), False), []).append(node)
    _join_maps(groups)
    steps: list[Loop | FrameNode] = []
    for key in sorted(groups, key=lambda key: key[:2]):
        members = groups[key]
        steps += members if members[0].kind == "call" else [_loop(members, stored)]
    leaves = tuple(node for node in nodes if node.kind == "input")
    return LoopPlan(inputs=leaves, steps=tuple(steps), outputs=tuple(outputs))


def _as_input(root: FrameNode, known: Callable[[FrameNode], bool]) -> FrameNode:
    """The same graph with inputs in the place of what is known."""
    made: dict[int, FrameNode] = {}
    for node in walk([root], stop=known):
        if known(node) and not node.is_leaf():
            made[id(node)] = FrameNode("input", "input", node.dtype, node.shape, value=node.value)
        else:
            args = tuple(made[id(arg)] for arg in node.args)
            made[id(node)] = node if args == node.args else dataclasses.replace(node, args=args)
    return made[id(root)]


def _stored_nodes(nodes: Iterable[FrameNode], outputs: Sequence[FrameNode]) -> dict[FrameNode, None]:
    """What is to be kept in memory, in order of computation."""
    kept = {node: None for node in outputs if not node.is_leaf()}
    for node in nodes:
        if node.kind in ("reduce", "call"):
            kept[node] = None
        for arg in node.args:
            spread = node.kind != "call" and arg.shape not in (
                (),
                node.args[0].shape if node.kind == "reduce" else node.shape,
            )
            if arg.kind == "map" and (node.kind == "call" or spread):
                kept[arg] = None
    return kept


def _stages(nodes: Sequence[FrameNode], stored: dict[FrameNode, None]) -> dict[FrameNode, int]:
    """After how many rounds of loops each can be computed; what later rounds need again is stored where that pays."""
    after: dict[FrameNode, int] = {}  # the stage from which its value can be read
    stage: dict[FrameNode, int] = {}
    users: dict[FrameNode, int] = {}
    for node in nodes:
        stage[node] = max((after[arg] for arg in node.args), default=0)
        apart = node.kind in ("reduce", "call") or (node in stored and _is_spread(node, nodes))
        after[node] = stage[node] + apart
    for node in nodes:
        for arg in node.args:
            users[arg] = max(users.get(arg, 0), stage[node])
    for node in nodes:
        if node.kind == "map" and node.shape and users.get(node, 0) > stage[node] and OPERATIONS[node.name].heavy:
            stored[node] = None
    return stage


def _is_spread(node: FrameNode, nodes: Sequence[FrameNode]) -> bool:
    """Whether somebody needs it at once in another shape, so that it must be there before."""
    return any(
        node in user.args
        and (user.kind == "call" or (user.shape != node.shape and user.kind == "map" and node.shape != ()))
        for user in nodes
    )


def _join_maps(groups: dict[Any, list[FrameNode]]) -> None:
    """Values of maps are computed in the loop of a reduction of the same shape, where there is one."""
    for key in list(groups):
        stage, order, shape, rows = key
        other = (stage, order, shape, True)
        if not rows and other in groups and all(node.kind == "map" for node in groups[key]):
            groups[other] += groups.pop(key)


def _loop(members: list[FrameNode], stored: dict[FrameNode, None]) -> Loop:
    own = set(members)
    roots = [node.args[0] if node.kind == "reduce" else node for node in members]
    shape = roots[0].shape

    def is_given(node: FrameNode) -> bool:
        return (
            node.is_leaf()
            or node.kind in ("reduce", "call")
            or (node in stored and node not in own and node.shape != ())
        )

    nodes = list(walk(roots, stop=is_given))
    given = [node for node in nodes if is_given(node) and node.kind != "constant"]
    return Loop(
        shape=shape,
        rows=any(node.axis is not None for node in members),
        inputs=tuple(node for node in given if not node.weak),
        numbers=tuple(node for node in given if node.weak),
        body=tuple(node for node in nodes if not is_given(node)),
        outputs=tuple(node for node in members if node.kind == "map"),
        reductions=tuple(node for node in members if node.kind == "reduce"),
    )


def group_loop(code: FrameNode, mask: FrameNode | None, values: Sequence[FrameNode]) -> Loop:
    """One loop that computes, for a group-by, each row's group, whether it counts, and its values: in this order, what
    the loop keeps."""
    roots = [code, *([mask] if mask else []), *values]
    kept = merge_equal([_as_input(root, lambda node: node.is_leaf() or node.value is not None) for root in roots])
    nodes = list(walk(kept))
    given = [node for node in nodes if node.kind == "input"]
    assert all(node.kind in ("input", "constant", "map") for node in nodes), "what is grouped is computed row by row"
    return Loop(
        shape=code.shape,
        rows=False,
        inputs=tuple(node for node in given if not node.weak),
        numbers=(),
        body=tuple(node for node in nodes if node.kind == "map"),
        outputs=(),
        reductions=(),
        kept=tuple(kept),
    )
