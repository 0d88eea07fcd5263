"""What users can reach: every module of the package is imported, at load or later, by a verb, a command or a worker.

What only tests and benches need lives with them; `dovetail/testing` alone is there for those who write plug-ins. Unused
functions and classes are found by name: one that no other code of the package mentions has no way in.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOORS = ("dovetail", "dovetail.__main__", "dovetail.frame", "dovetail.cli", "dovetail.verbs", "dovetail.engines.worker")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, ast.Module]:
    """Every module's code, read once and not by a process that only collects the tests."""
    return {
        module_name(path): ast.parse(path.read_text())
        for path in sorted((ROOT / "dovetail").rglob("*.py"))
        if "testing" not in path.parts
    }


@cache
def classes() -> set[str]:
    return {node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def imported(tree: ast.Module) -> Iterator[str]:
    """The package's modules that are imported anywhere in a module or named there in a string, and their parents."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("dovetail."):
            names = [node.value.partition(":")[0]]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def test_every_module_is_reached_by_a_verb_a_command_or_a_worker() -> None:
    reached = {name for name in modules() if name.startswith(DOORS[2:]) or name in DOORS}
    ahead = list(reached)
    while ahead:
        new = {name for name in imported(modules()[ahead.pop()]) if name in modules()} - reached
        reached |= new
        ahead += new
    assert sorted(modules().keys() - reached) == []


def mentions(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
            yield each.value  # exported by name, or looked up


def is_handed_on(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator gives it to somebody, as a command's does."""
    return any(word in ast.unparse(each) for each in node.decorator_list for word in ("command", "callback"))


def test_every_function_and_class_is_mentioned_by_other_code_of_the_package() -> None:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    places: dict[str, set[tuple[str, int]]] = {}
    for module, tree in modules().items():
        for number, node in enumerate(tree.body):
            for name in mentions(node):
                places.setdefault(name, set()).add((module, number))
    unused = [
        f"{module}.{node.name}"
        for module, tree in modules().items()
        for number, node in enumerate(tree.body)
        if isinstance(node, definitions) and not node.name.startswith("__") and not is_handed_on(node)
        if not places.get(node.name, set()) - {(module, number)}
    ]
    assert unused == []


def is_called_from_elsewhere(module: str, node: ast.ClassDef) -> bool:
    """Whether others call its methods: users those of the API page's classes, other packages those of what they gave a
    base for, and modules what they look for in the Trainer that they are shown."""
    others = [
        base for base in node.bases if ast.unparse(base).partition("[")[0] not in classes() | {"Generic", "Protocol"}
    ]
    return bool(others) or node.name in OF_USERS or module == "dovetail.adapters.lightning_view"


OF_USERS = set(re.findall(r"^### `(?:\w+\.)*(\w+)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))


def test_every_method_is_mentioned_by_other_code_of_the_package() -> None:
    mentioned: dict[str, set[tuple[str, int]]] = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
            if isinstance(node, ast.Attribute | ast.Name | ast.Constant) and isinstance(name, str):
                mentioned.setdefault(name, set()).add((module, node.lineno))
    unused = [
        f"{module}.{node.name}.{method.name}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not is_called_from_elsewhere(module, node)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_")
        if not mentioned.get(method.name, set())
        - {(module, line) for line in range(method.lineno, (method.end_lineno or method.lineno) + 1)}
    ]
    assert unused == []
