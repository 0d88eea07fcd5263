"""Imports point down, never sideways, and the floors that plan and keep records never load torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "dovetail"
FLOORS = {
    "vocabulary": 0,
    "native": 0,
    "frame": 0.5,  # above the compiler, below those that compute with it
    "describe": 1,
    "planning": 1,
    "store": 1,
    "metrics": 1,
    "feeds": 1,
    "watch": 1,
    "train": 2,
    "adapters": 3,
    "profile": 3,
    "selection": 3,
    "engines": 4,
    "control": 5,
    "serve": 5,
    "trackers": 5,
    "verbs": 6,
    "cli": 7,
    "web": 7,
}
# The same among the rooms of planning, whose files at its root are rooms too.
PLANNING = {
    "links": 0,
    "problem": 0,
    "room": 0,
    "checker": 0,
    "promise_checker": 1,
    "paired_differences": 0,
    "solver": 0,
    "fitting": 1,
    "explanation": 1,
    "streaming": 1,
    "market": 1,
    "pipeline": 1,
    "feeds": 1,
    "hopping": 1,
    "serving": 1,
    "techniques": 2,
    "options": 3,
    "schedule": 4,
    "share": 4,
}
# Everybody's: conformance suites for all floors, the public names, `python -m dovetail`.
FREE = {"testing", "__init__.py", "__main__.py"}
# The commands `report`, `export` and `ui` show and serve what web makes; web knows nothing of commands.
EXCEPTIONS = {("cli", "web")}


def imported(file, *, level=1):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        parts = [name.split(".") for name in names]
        yield from (each[level] for each in parts if each[0] == "dovetail" and len(each) > level)
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
    "file", sorted((ROOT / "planning").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT))
)
def test_a_room_of_planning_imports_only_from_below(file):
    own = file.relative_to(ROOT / "planning").parts[0].removesuffix(".py")
    if own == "__init__":  # what planning shows to others
        return
    for other in {name for name in imported(file, level=2) if name in PLANNING} - {own}:
        assert PLANNING[other] < PLANNING[own], f"planning/{own} imports planning/{other}"


def test_every_room_of_planning_has_a_floor():
    rooms = {
        path.stem for path in (ROOT / "planning").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__"} == PLANNING.keys()


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("dovetail", ["torch", "numpy", "typer", "rich", "starlette", "uvicorn", "dovetail.vocabulary"]),
        ("dovetail.vocabulary", ["torch", "numpy", "dovetail.describe"]),
        ("dovetail.describe, dovetail.planning, dovetail.store, dovetail.metrics", ["torch", "numpy", "cloudpickle"]),
        (
            "dovetail.control, dovetail.engines, dovetail.engines.worker",
            ["torch", "numpy", "typer", "rich", "starlette"],
        ),
    ],
)
def test_what_an_import_does_not_load(modules, absent):
    code = f"import sys, {modules}; print([name for name in {absent!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
