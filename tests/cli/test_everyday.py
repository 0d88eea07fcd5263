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
