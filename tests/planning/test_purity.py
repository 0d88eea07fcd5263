"""Planning is pure: what it imports, and what it does not touch."""

import ast
import pathlib
import subprocess
import sys

import pytest

from dovetail.planning import problem

# By a module inside it.
FOLDER = pathlib.Path(problem.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
IMPURE = {
    "torch",
    "time",
    "datetime",
    "os",
    "random",
    "secrets",
    "uuid",
    "socket",
    "threading",
    "subprocess",
    "logging",
}


def test_importing_planning_loads_no_torch() -> None:
    code = "import sys, dovetail.planning; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[1], timeout=300).returncode == 0


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_planning_reads_no_clock_no_environment_and_no_dice(file: pathlib.Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert not imported & IMPURE


def test_the_check_shares_nothing_with_the_planners() -> None:
    check = next(file for file in FILES if file.stem == "checker")
    assert "dovetail.planning" not in check.read_text()
