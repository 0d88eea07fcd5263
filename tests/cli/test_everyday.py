"""What stands beside everyday programs, and what they do when they are imported, is none of the command's business."""

import sys

import pytest

from tests.cli.processes import dovetail, write

pytestmark = pytest.mark.process

PROGRAM = """
import torch
import dovetail as dt


def line(learning_rate=0.1):
    model = torch.nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 16).unsqueeze(1)
    return dt.Training(
        model=model,
        batches=[x],
        loss=lambda model, batch: (model(batch) - 3 * batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
    )


workload = dt.grid(line, learning_rate=[0.1, 0.2], steps=5)
"""


def test_files_named_as_the_standard_librarys_are_not_taken_for_it(tmp_path):
    names = [name for name in sys.stdlib_module_names if not name.startswith("_")]
    write(tmp_path, **dict.fromkeys(names, "raise RuntimeError('this is the file of the user')"), sweep=PROGRAM)
    found = dovetail("run", "sweep.py", cwd=tmp_path)
    assert found.code == 0, found.err


TALKING = """
import argparse
import os

print("hello from the file")
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=1)
arguments = parser.parse_args()
"""

MOVING = """

def moving(number):
    assert "MINE" not in os.environ, "of another task"
    assert os.path.basename(os.getcwd()) == "begun", os.getcwd()
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    os.environ["MINE"] = os.environ["HOME"] = str(number)
    argparse.ArgumentParser().parse_args()
    return line()


workload = dt.grid(moving, number=[1, 2, 3], steps=5)
"""


def test_a_file_that_prints_and_reads_arguments_and_tasks_that_change_folder_and_environment(tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    write(begun, sweep=TALKING + PROGRAM + MOVING)
    found = dovetail("run", "sweep.py", "--quiet", "--json", cwd=begun)
    assert found.code == 0, found.err + found.out
    assert len(found.json()["tasks"]) == 3
    assert "hello from the file" in found.err


def test_a_file_that_needs_arguments_is_refused_by_name(tmp_path):
    write(tmp_path, sweep=TALKING.replace("default=1", "required=True") + PROGRAM)
    found = dovetail("run", "sweep.py", "--json", cwd=tmp_path)
    assert found.code == 2
    assert "sweep.py must be importable; importing it raised SystemExit" in found.err
