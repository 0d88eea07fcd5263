"""Group-bys: each row's group is a small whole number, and one loop adds all values to all groups.

Whole-number keys that lie close together are their own address; others, and text, are numbered by a hash table first
(that of pandas or of Arrow). Which it is follows from the keys' measured range. Knows nothing of tables.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy

from dovetail.frame.interpreter import blocks, interpret
from dovetail.frame.kernels import group_kernel_of
from dovetail.frame.loops import Loop, group_loop
from dovetail.frame.nodes import FrameNode, cast, constant_node, input_node, map_node, reduce_node
from dovetail.frame.runner import compute, thread_count
from dovetail.frame.table_source import values_at

# A thread's sums of so many groups stay in its cache; more are added by one thread.
_MOST_PARALLEL = 65536
_MOST_GROUPS = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class GroupKey:
    """One key of a group-by: the node of its small whole numbers, and the value that each stands for, in order."""

    name: str
    code: FrameNode
    labels: Any
    how: str

    def count(self) -> int:
        return len(self.labels)


def whole_number_key(name: str, node: FrameNode) -> GroupKey | None:
    """A key of whole numbers by its own address, where these lie close together; None where they do not."""
    if node.shape[0] == 0:
        return None
    least, most = compute([reduce_node("min", node, None), reduce_node("max", node, None)])
    low, span = int(least), int(most) - int(least) + 1
    if span > min(_MOST_GROUPS, max(1024, node.shape[0] // 4)) or not -(2**62) < low < 2**62:
        return None
    wide = cast(node, numpy.dtype("int64"))
    code = map_node("subtract", numpy.subtract, (wide, constant_node(numpy.int64(low))))
    labels = numpy.arange(low, low + span).astype(node.dtype)
    return GroupKey(name, code, labels, "direct address")


def numbered_key(name: str, codes: numpy.ndarray, labels: Any) -> GroupKey:
    """A key whose values were numbered by a hash table; the labels are sorted here, unless they are."""
    order = numpy.argsort(label_array(labels), kind="stable")
    if (order[1:] > order[:-1]).all():
        return GroupKey(name, input_node(codes), labels, "hash table")
    rank = numpy.empty(len(order), "int32")
    rank[order] = numpy.arange(len(order), dtype="int32")
    sorted_labels = labels[order] if isinstance(labels, numpy.ndarray) else [labels[place] for place in order.tolist()]
    return GroupKey(name, input_node(values_at(rank, codes)), sorted_labels, "hash table")


def label_array(labels: Any) -> numpy.ndarray:
    """Labels as an array: NumPy's text leaves out zeros at the end, so that texts with some are objects.

    >>> label_array(["a", "b"]).dtype, label_array(["a", "a\\0"]).dtype
    (dtype('<U1'), dtype('O'))
    """
    lossy = isinstance(labels, list) and any(type(each) is str and each.endswith("\0") for each in labels)
    return numpy.asarray(labels, object if lossy else None)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class GroupSums:
    """What a group-by gave, for the groups that have rows: their numbers, and each value's sum and count."""

    groups: numpy.ndarray
    rows: numpy.ndarray
    sums: tuple[numpy.ndarray, ...]
    counts: tuple[numpy.ndarray, ...]


def sum_groups(keys: Sequence[GroupKey], mask: FrameNode | None, values: Sequence[FrameNode]) -> GroupSums | None:
    """The sums of all groups in one loop; None where there would be too many groups."""
    total = 1
    code = cast(keys[0].code, numpy.dtype("int64"))
    for key in keys:
        if key is not keys[0]:
            scaled = map_node("multiply", numpy.multiply, (code, constant_node(numpy.int64(key.count()))))
            code = map_node("add", numpy.add, (scaled, cast(key.code, numpy.dtype("int64"))))
        total *= key.count()
    if total > _MOST_GROUPS:
        return None
    loop = group_loop(code, mask, values)
    own = loop.kept[1 + (mask is not None) :]
    fields = [("rows", "i8"), ("values", [("sum", "f8"), ("lost", "f8"), ("whole", "i8"), ("count", "i8")],
                               (max(1, len(own)) + 1,))]  # fmt: skip
    found = numpy.zeros(total, fields)
    _run(loop, found, masked=mask is not None)
    groups = numpy.flatnonzero(found["rows"])
    part = found[groups]
    sums = [
        part["values"]["sum"][:, number].astype(node.dtype)
        if node.dtype.kind == "f"
        else part["values"]["whole"][:, number].astype("uint64" if node.dtype.kind == "u" else "int64")
        for number, node in enumerate(own)
    ]
    counts = tuple(part["values"]["count"][:, number] for number in range(len(own)))
    return GroupSums(groups, part["rows"], tuple(sums), counts)


def _run(loop: Loop, found: numpy.ndarray, *, masked: bool) -> None:
    """By the compiled loop, or by NumPy until there is one."""
    kernel = group_kernel_of(loop, masked=masked)
    arrays = [node.value for node in loop.inputs]
    if kernel.state == "ready" and loop.shape[0]:
        kernel.run([*arrays, found], [], loop.shape, thread_count() if len(found) <= _MOST_PARALLEL else 1)
        return
    for start, stop in blocks(loop.shape):
        with numpy.errstate(all="ignore"):
            values = interpret(loop, loop.shape, arrays, [], [], start, stop, keep=loop.kept)
        _add_block(found, loop, values, masked=masked)


def _add_block(found: numpy.ndarray, loop: Loop, block: Sequence[Any], *, masked: bool) -> None:
    code = block[0]
    chosen = numpy.flatnonzero(block[1]) if masked else slice(None)
    code = code[chosen]
    if not len(code):
        return
    size = len(found) if len(found) <= 4 * len(code) else None
    groups, inner = (None, code) if size else numpy.unique(code, return_inverse=True)
    where = slice(None) if groups is None else groups
    least = size or len(groups)  # type: ignore[arg-type]
    found["rows"][where] += numpy.bincount(inner, minlength=least)
    for number, node in enumerate(loop.kept[1 + masked :]):
        values = numpy.broadcast_to(block[1 + masked + number], (code.size if not masked else len(block[0]),))
        values = values[chosen] if masked else values
        if node.dtype.kind == "f":
            there = ~numpy.isnan(values)
            found["values"]["sum"][where, number] += numpy.bincount(
                inner, numpy.where(there, values, 0).astype("f8"), minlength=least
            )
            found["values"]["count"][where, number] += numpy.bincount(inner[there], minlength=least)
        else:
            part = numpy.zeros(least, "i8")
            numpy.add.at(part, inner, values.astype("i8"))
            found["values"]["whole"][where, number] += part
            found["values"]["count"][where, number] += numpy.bincount(inner, minlength=least)
