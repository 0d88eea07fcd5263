"""Imports point down, never sideways, and the floors that plan and keep records never load torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "dovetail"
FLOORS = {
    "vocabulary": 0,
    "describe": 1,
    "planning": 1,
    "store": 1,
    "metrics": 1,
    "feed": 1,
    "train": 2,
    "profile": 3,
    "engines": 4,
    "control": 5,
    "verbs": 6,
    "cli": 7,
    "web": 7,
}
# Everybody's: conformance suites for all floors, the public names, `python -m dovetail`.
FREE = {"testing", "__init__.py", "__main__.py"}
# The verbs `report` and `export` write pages and files that web makes; web knows nothing of verbs.
EXCEPTIONS = {("cli", "web")}


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name.split(".")[1] for name in names if name.startswith("dovetail."))
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}: imports are absolute"


def files():
    return [file for file in sorted(ROOT.rglob("*.py")) if file.relative_to(ROOT).parts[0] not in FREE]


def test_every_folder_has_a_floor():
    assert {file.relative_to(ROOT).parts[0] for file in files()} == FLOORS.keys()


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_from_below(file):
    own = file.relative_to(ROOT).parts[0]
    for other in set(imported(file)) - {own}:
        assert FLOORS.get(other, 99) < FLOORS[own] or (own, other) in EXCEPTIONS, f"{own} imports {other}"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("dovetail", ["torch", "numpy", "typer", "rich", "plotly", "dovetail.vocabulary"]),
        ("dovetail.vocabulary", ["torch", "numpy", "dovetail.describe"]),
        ("dovetail.describe, dovetail.planning, dovetail.store, dovetail.metrics", ["torch", "numpy", "cloudpickle"]),
        ("dovetail.control, dovetail.engines, dovetail.engines.worker", ["torch", "numpy", "typer", "rich", "plotly"]),
    ],
)
def test_what_an_import_does_not_load(modules, absent):
    code = f"import sys, {modules}; print([name for name in {absent!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
