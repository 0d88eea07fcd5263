"""The C of a loop: one translation unit, the same for every array of the same types.

A block of elements goes through short loops, one for all light operations that can be done at once and one for each
heavy one: a processor then works on several elements of it at the same time, which it cannot where one long loop
computes all of an element, and what passes between them stays in the nearest cache. Blocks, units and threads are
loop_runtime.h's.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy

from dovetail.frame.loops import Loop
from dovetail.frame.nodes import FrameNode
from dovetail.frame.operations import C_TYPES, OPERATIONS, c_of
from dovetail.native import WIDEST_VECTORS

_HERE = Path(__file__).parent
# What vectors need of -ffast-math, and not the whole, which would break NaN and infinity. Contracted products would
# round once where NumPy rounds twice.
# The same loops as with -O3, in less time.
FLAGS = (
    *("-O2", "-ftree-vectorize", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-ffp-contract=off"),
    *WIDEST_VECTORS,
    *("--param", "vect-epilogues-nomask=0"),  # of a block the last few elements one by one: an eighth less to compile
)
_ACCUMULATORS = {"b": "i", "i": "i", "u": "u", "f": "f"}


def c_source(loop: Loop) -> str:
    """The whole C file of a fused loop."""
    return "\n".join([*_head(loop), *_heavy_functions(loop), *_block(loop), *_reductions(loop), ""])


def c_group_source(loop: Loop, masked: bool) -> str:
    """The whole file of a group-by: the loop's blocks, added to the groups that their rows belong to."""
    values = loop.kept[1 + masked :]
    head = [f"#define GROUPED {max(1, len(values))}", *_head(loop)]
    block = _block(loop, tail=_grouping_lines(loop, masked))
    return "\n".join([*head, *_heavy_functions(loop), *block, *_reductions(loop), ""])


def _grouping_lines(loop: Loop, masked: bool) -> list[str]:
    """Each row's values are added to its group. Sums of floats carry what rounding lost (Kahan), and leave NaN out, as
    pandas does."""
    places = _places(loop)
    code, values = places[loop.kept[0]], loop.kept[1 + masked :]
    lines = ["    for (int64_t i = 0; i < n; i++) {"]
    if masked:  # chosen first, without a branch: of a condition that chance decides, a processor foresees half
        mask = places[loop.kept[1]]
        lines = [
            "    uint8_t chosen[BLOCK];",
            "    int64_t taken = 0;",
            f"    for (int64_t i = 0; i < n; i++) {{ chosen[taken] = (uint8_t)i; taken += {mask}[i] != 0; }}",
            "    for (int64_t k = 0; k < taken; k++) {",
            "        const int64_t i = chosen[k];",
        ]
    lines.append(f"        struct group *group = &scratch->groups[(int64_t){code}[i]];")
    lines.append("        group->rows++;")
    for number, node in enumerate(values):
        add = {"f": "ADD_FLOAT", "u": "ADD_WHOLE"}.get(node.dtype.kind, "ADD_WHOLE")
        value = places[node] + "[i]" if node in places else _literal(node)
        lines.append(f"        {add}(group->values[{number}], {value});")
    return [*lines, "    }"]


def _head(loop: Loop) -> list[str]:
    items = ", ".join(str(node.dtype.itemsize) for node in loop.inputs) or "0"
    buffers = [
        f"    {C_TYPES[node.dtype.char]} {name}[256] __attribute__((aligned(64)));" for node, name in _buffers(loop)
    ]
    return [
        f"#define HEAD {object.__basicsize__}",
        f"#define INPUTS {len(loop.inputs)}",
        f"#define OUTPUTS {len(loop.outputs)}",
        f"#define REDUCTIONS {len(loop.reductions)}",
        f"#define ROWS {int(loop.rows)}",
        (_HERE / "vector_math.h").read_text(),
        (_HERE / "scalar_math.h").read_text(),
        f"static const int64_t ITEMS[] = {{{items}}};",
        "struct scratch {",
        "    double gathered[INPUTS + 1][256] __attribute__((aligned(64)));",
        "    struct group *groups;",
        *buffers,
        "};",
        (_HERE / "loop_runtime.h").read_text(),
    ]


def _names(loop: Loop) -> dict[FrameNode, str]:
    """What each value is called in the block's loops."""
    names = {node: f"x{number}" for number, node in enumerate(loop.inputs)}
    names |= {node: f"w{number}" for number, node in enumerate(loop.numbers)}
    return names | {node: f"v{number}" for number, node in enumerate(loop.body)}


def _is_single(node: FrameNode, loop: Loop) -> bool:
    """Whether it is one number for the whole loop, computed ahead of it."""
    return node.shape == () and loop.shape != ()


def _phases(loop: Loop) -> dict[FrameNode, tuple[int, int]]:
    """Which of the short loops computes a value: a phase's light operations together, then its heavy ones."""
    found: dict[FrameNode, tuple[int, int]] = {}
    heavies = 0
    for node in loop.body:
        if _is_single(node, loop):
            continue
        heavy = OPERATIONS[node.name].heavy
        phase = 0
        for arg in node.args:
            if arg in found:
                before, number = found[arg]
                phase = max(phase, before + (number > 0))
        heavies += heavy
        found[node] = (phase, heavies if heavy else 0)
    return found


def _buffers(loop: Loop) -> list[tuple[FrameNode, str]]:
    """Values that pass from one short loop to another, with their buffers' names; outputs have their own place."""
    phases, names = _phases(loop), _names(loop)
    passing = {node.args[0]: None for node in loop.reductions if node.args[0] in phases}
    passing |= {node: None for node in loop.kept if node in phases}
    for node, phase in phases.items():
        passing |= {arg: None for arg in node.args if arg in phases and phases[arg] != phase}
        if OPERATIONS[node.name].within:
            passing[node] = None
    return [(node, f"{names[node]}_") for node in passing if node not in loop.outputs]


def _places(loop: Loop) -> dict[FrameNode, str]:
    """Where each element of a value is to be found in a block's loops."""
    names = _names(loop)
    inputs = {node: f"{names[node]}_" for node in loop.inputs if not _is_single(node, loop)}
    return dict(_buffers(loop)) | {node: f"{names[node]}_" for node in loop.outputs} | inputs


def _heavy_functions(loop: Loop) -> list[str]:
    """A short loop for each heavy operation, in a function of its own: what is done twice is compiled once."""
    phases, places = _phases(loop), _places(loop)
    lines: dict[str, list[str]] = {}
    for node in phases:
        if _is_function(node, places):
            names = {arg: f"a{number}" for number, arg in enumerate(dict.fromkeys(node.args))}
            own = {arg: f"{name}_" for arg, name in names.items()}
            given = "".join(f"const {C_TYPES[arg.dtype.char]} *restrict {own[arg]}, " for arg in names)
            into = f"{C_TYPES[node.dtype.char]} *restrict to_"
            lines[_function_name(node)] = [
                "static __attribute__((noinline))",
                f"void {_function_name(node)}({given}{into}, int64_t n) {{",
                *_short_loop([node], {**own, node: "to_"}, {**names, node: "to"}),
                "}",
            ]
    return [line for each in lines.values() for line in each]


def _is_function(node: FrameNode, places: dict[FrameNode, str]) -> bool:
    return OPERATIONS[node.name].heavy and node in places and all(arg in places for arg in node.args)


def _function_name(node: FrameNode) -> str:
    """The same for all that do the same to the same types, with as many different arrays."""
    order = list(dict.fromkeys(node.args))
    taken = "".join(f"{arg.dtype.char}{order.index(arg)}" for arg in node.args)
    return f"each_{node.name}_{taken}_{node.dtype.char}"


def _block(loop: Loop, tail: Sequence[str] = ()) -> list[str]:
    names, phases = _names(loop), _phases(loop)
    places = _places(loop)
    lines = [
        "static void block(const struct job *job, struct scratch *scratch, int64_t start, int64_t n, value *partial) {"
    ]
    for number, node in enumerate(loop.inputs):
        kind = C_TYPES[node.dtype.char]
        if _is_single(node, loop):
            lines.append(f"    const {kind} x{number} = *(const {kind} *)job->in[{number}].data;")
        else:
            lines.append(
                f"    const {kind} *restrict x{number}_ = "
                f"elements(job, {number}, scratch->gathered[{number}], start, n);"
            )
    lines += [f"    const double w{number} = job->scalars[{number}];" for number in range(len(loop.numbers))]
    for number, node in enumerate(loop.outputs):
        kind = C_TYPES[node.dtype.char]
        lines.append(f"    {kind} *restrict {names[node]}_ = ({kind} *)job->out[{number}] + start;")
    for node, name in _buffers(loop):
        lines.append(f"    {C_TYPES[node.dtype.char]} *restrict {name} = scratch->{name};")
    lines += [f"    {_statement(node, names, libm=True)}" for node in loop.body if _is_single(node, loop)]
    for phase in sorted(set(phases.values())):
        nodes = [node for node in loop.body if phases.get(node) == phase]
        if _is_function(nodes[0], places):
            (node,) = nodes
            pointers = ", ".join(places[arg] for arg in dict.fromkeys(node.args))
            lines.append(f"    {_function_name(node)}({pointers}, {places[node]}, n);")
        else:
            lines += _short_loop(nodes, places, names)
    for number, node in enumerate(loop.outputs):
        if node not in phases:  # one number, wanted as it is
            lines.append(f"    ({names[node]}_)[0] = {names[node]}; (void)job->out[{number}];")
    lines += [f"    {_partial(number, node, places)}" for number, node in enumerate(loop.reductions)]
    return [*lines, *tail, "}"]


def _short_loop(nodes: list[FrameNode], places: dict[FrameNode, str], names: dict[FrameNode, str]) -> list[str]:
    own = set(nodes)
    read = {arg: None for node in nodes for arg in node.args if arg in places and arg not in own}
    loads = [f"        const {C_TYPES[arg.dtype.char]} {names[arg]} = {places[arg]}[i];" for arg in read]
    stores = [f"        {places[node]}[i] = {names[node]};" for node in nodes if node in places]
    tests = [node for node in nodes if OPERATIONS[node.name].within]
    return [
        *(f"    int64_t outside_{names[node]} = 0;" for node in tests),
        "    for (int64_t i = 0; i < n; i++) {",
        *loads,
        *[f"        {_statement(node, names)}" for node in nodes],
        *stores,
        *[f"        outside_{names[n]} |= !{OPERATIONS[n.name].within}({_argument(n.args[0], names)});" for n in tests],
        "    }",
        *[line for node in tests for line in _repair(node, places, names)],
    ]


def _repair(node: FrameNode, places: dict[FrameNode, str], names: dict[FrameNode, str]) -> list[str]:
    """Elements beyond what the vector function takes are libm's, where a block has any."""
    operation, (arg,) = OPERATIONS[node.name], node.args
    from_place = places.get(arg)
    load = f"const double x = {f'{from_place}[i]' if from_place else _argument(arg, names)};"
    return [
        f"    if (outside_{names[node]}) for (int64_t i = 0; i < n; i++) {{",
        f"        {load}",
        f"        if (!{operation.within}(x)) {places[node]}[i] = {operation.libm}(x);",
        "    }",
    ]


def _statement(node: FrameNode, names: dict[FrameNode, str], *, libm: bool = False) -> str:
    kind = C_TYPES[node.dtype.char]
    operation = OPERATIONS[node.name]
    template = c_of(node.name, node.args[-1].dtype)
    assert template is not None, node.name
    if node.name == "cast" and node.dtype.kind == "b":
        template = "({0} != 0)"  # C has no bool of one byte, and would keep the last eight bits
    if libm and operation.libm:
        template = f"{operation.libm}({{0}})"
    return f"const {kind} {names[node]} = ({kind}){template.format(*(_argument(arg, names) for arg in node.args))};"


def _argument(node: FrameNode, names: dict[FrameNode, str]) -> str:
    return _literal(node) if node.kind == "constant" else names[node]


def _literal(node: FrameNode) -> str:
    return f"(({C_TYPES[node.dtype.char]}){_number(node)})"


def _number(node: FrameNode) -> str:
    if node.dtype.kind != "f":
        whole = int(node.value)
        if whole < 0:  # the least has no positive
            return f"({whole + 1}LL - 1)"
        return f"{whole}{'ULL' if node.dtype.kind == 'u' else 'LL'}"
    number = float(node.value)
    if math.isnan(number):
        return "NAN"
    return f"{'-' * (number < 0)}INFINITY" if math.isinf(number) else f"({number.hex()})"


def _partial(number: int, node: FrameNode, places: dict[FrameNode, str]) -> str:
    slot = _slot(node)
    return f"REDUCE_{node.name.upper()}({slot}, partial[{number}].{slot}, {places[node.args[0]]}, n);"


def _slot(node: FrameNode) -> str:
    return _ACCUMULATORS[node.args[0].dtype.kind]


def _reductions(loop: Loop) -> list[str]:
    combined = [
        f"    COMBINE_{n.name.upper()}(into[{k}].{_slot(n)}, other[{k}].{_slot(n)});"
        for k, n in enumerate(loop.reductions)
    ]
    finished = []
    for number, node in enumerate(loop.reductions):
        kind = C_TYPES[node.dtype.char]
        share = " / job->count" if node.name == "mean" else ""
        finished.append(
            f"    (({kind} *)job->reduced[{number}])[number] = ({kind})(result[{number}].{_slot(node)}{share});"
        )
    return [
        "static void combine(value *into, const value *other) {",
        *combined,
        "    (void)into, (void)other;",
        "}",
        "static void finish(const struct job *job, const value *result, int64_t number) {",
        *finished,
        "    (void)job, (void)result, (void)number;",
        "}",
    ]


def describe(loop: Loop) -> Iterable[str]:
    """What it computes, a line for each value, as `explain` shows it."""
    names = _names(loop)
    for node in loop.body:
        yield f"{names[node]} = {node.name}({', '.join(_operand(arg, names) for arg in node.args)})"
    for node in loop.reductions:
        yield f"{node.name}({_operand(node.args[0], names)})"


def _operand(node: FrameNode, names: dict[FrameNode, str]) -> str:
    return str(numpy.asarray(node.value)[()]) if node.kind == "constant" else names[node]
