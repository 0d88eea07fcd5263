"""The tutorial cannot rot: every block of it is run, and every message it explains is one that Dovetail gives.

A Python block says in its first line what it is: a whole file, lines that follow those of a file, or a notebook's.
"""

import ast
import contextlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.control import open_result
from dovetail.describe import deposit, load_workload
from dovetail.store import write_atomically
from dovetail.train import RESIDENT, SessionMember
from dovetail.train.build import build

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
LINES_AT_MOST = 420
STEPS = 3
# What runs what the others describe; these run after the workload of the first file.
AFTERWARDS = ("go.py", "look.py")
# What needs a controller that runs at the same time.
ASKING = ("stop", "cancel", "submit", "list", "pause", "resume")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


FILES = {block.split()[1]: block for block in blocks("python") if re.match(r"# \w+\.py\n", block)}


def examples() -> dict[str, str]:
    """The text of every file with a workload that the tutorial leads to, by a name for the test."""
    found = {name: text for name, text in FILES.items() if name not in AFTERWARDS}
    for number, block in enumerate(blocks("python")):
        if addition := re.match(r"# in (\w+\.py)\n", block):
            found[f"{addition[1]} and block {number}"] = FILES[addition[1]] + block
    return found


def losses_of(session, steps: int) -> list[float]:
    return [float(session.advance()[0].loss) for _ in range(steps)]


def opened(task, *, home: Path | None = None):
    members = [SessionMember(training=build(task, home=home), seed=task.seed)]
    return contextlib.closing(RESIDENT.open(members, device=torch.device("cpu"), threads=1))


def check(task, *, home: Path | None = None) -> None:
    """A task trains, evaluates, and goes on exactly from a state."""
    with opened(task, home=home) as session:
        whole = losses_of(session, STEPS)
        assert all(map(torch.isfinite, map(torch.tensor, whole)))
        assert task.stop.metric is None or task.stop.metric in session.evaluate()
    with opened(task, home=home) as before, opened(task, home=home) as after:
        first = losses_of(before, 1)
        after.load(before.state())
        assert first + losses_of(after, STEPS - 1) == whole


def test_it_is_short_and_every_block_is_of_a_kind_that_is_run():
    assert len(TEXT.splitlines()) < LINES_AT_MOST
    for block in blocks("python"):
        assert re.match(r"# (in )?\w+\.py\n|# in a notebook\n", block), block
    assert len(FILES) >= 5
    assert set(AFTERWARDS) < FILES.keys()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 computes it another way
@pytest.mark.parametrize("name", sorted(examples()))
def test_a_file_describes_tasks_that_train_and_resume(name, tmp_path):
    file = tmp_path / name.split()[0]
    file.write_text(examples()[name])
    workload = load_workload(str(file))
    assert len(workload.tasks) > 1
    for task in (workload.tasks[0], workload.tasks[-1]):
        check(task)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader of the tutorial works: all its files, and nothing of another test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    sys.modules.pop("sweep", None)
    yield tmp_path
    sys.modules.pop("sweep", None)


def test_what_a_notebook_describes_travels_as_a_pickle(folder):
    (block,) = [block for block in blocks("python") if block.startswith("# in a notebook\n")]
    namespace = {"__name__": "__main__"}
    exec(block, namespace)
    deposit(folder / "store", write=write_atomically)
    for task in namespace["workload"].tasks:
        assert task.program.reference.startswith("pickle:")
        check(task, home=folder / "store")


def commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]


@pytest.mark.process
def test_the_commands_and_scripts_work_in_the_order_of_the_page(folder):
    for word, verb, *arguments in commands():
        assert word == "dovetail"
        found = CliRunner().invoke(app, [verb, *arguments])
        if verb in ASKING:
            assert "a controller must be running" in found.output
        else:
            assert found.exit_code == 0, found.output
    for name in AFTERWARDS:
        exec(compile(FILES[name], name, "exec"), {"__name__": "__main__"})
    result = open_result(".dovetail")
    assert {task.status for task in result.tasks} == {"finished"}
    assert set(re.findall(r"^(\S.*\S) +finished ", TEXT, flags=re.MULTILINE)) <= {task.name for task in result.tasks}
    for made in ("report.html", "best.safetensors", "model.safetensors"):
        assert (folder / made).stat().st_size
    assert list((folder / "runs").rglob("*tfevents*"))


def test_every_message_it_explains_is_one_that_dovetail_gives():
    said = " ".join(_texts())
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    assert len(rows) > 10
    for message in [message for row in rows for message in re.findall("`(.*?)`", row)]:
        assert message in said, message


def _texts() -> list[str]:
    """Every text in the source, with a blank for each value that is put into it."""
    trees = [ast.parse(file.read_text()) for file in sorted((ROOT / "dovetail").rglob("*.py"))]
    found = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found
