"""Solving leaves Ctrl-C to whoever handles it: OR-tools would put the default back, which ends the process unsaved."""

import subprocess
import sys

import pytest

CODE = """
import os
import signal

import numpy as np

from dovetail.planning.solver.linear import LinearProgram, maximise, maximise_whole
from dovetail.planning.solver.packing import Activity, pack

program = LinearProgram(
    objective=np.ones(2), rows=np.zeros(2, int), columns=np.arange(2), values=np.full(2, 2.0),
    lower=np.full(1, -np.inf), upper=np.full(1, 3.0),
)
activities = [Activity(ticks=5, covers={number: 1}, draws={0: 1}) for number in range(2)]
caught = []
signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
{solve}
os.kill(os.getpid(), signal.SIGINT)
assert caught == [signal.SIGINT]
"""


@pytest.mark.parametrize(
    "solve",
    [
        "pack(activities, needs=[1, 1], capacities=[1], horizon=10, work=1.0)",
        "maximise(program, then=np.array([0.0, 1.0]))",
        "maximise_whole(program, most=np.ones(2))",
    ],
)
def test_an_interrupt_reaches_its_handler_after_solving(solve):
    found = subprocess.run([sys.executable, "-c", CODE.replace("{solve}", solve)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
