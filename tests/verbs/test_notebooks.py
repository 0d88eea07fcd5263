"""Programs that no file holds: written in a notebook, or piped into Python. They travel to workers all the same."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from torch import nn

import dovetail as dt

SETTINGS = {"scale": 0.5}


def line(rate=0.1, seed=0) -> dt.Training:
    model = nn.Linear(4, 1)
    return dt.Training(
        model=model,
        batches=[SETTINGS["scale"] * torch.ones(8, 4)] * 4,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        evaluate=lambda model: {"size": float(model.weight.abs().sum())},
    )
"""
SWEEP = """
workload = dt.grid(line, rate=[0.1, 0.01], steps=20, objective="mean")
plan = dt.plan(workload, solve_seconds=0.5)
result = dt.run(plan, progress=False)
print([(task.name, task.status, task.step) for task in result.tasks])
print(sorted(result.tasks[0].metrics))
"""
EDIT = """
SETTINGS["scale"] = 2.0
"""
AGAIN = """
before = {task.name: task.metrics for task in result.tasks}
again = dt.run(dt.grid(line, rate=[0.1, 0.01], steps=20, objective="mean"), progress=False)
print([(task.name, task.status, before[task.name] == task.metrics) for task in again.tasks])
"""
PICTURE = "result.frame().plot(backend='plotly', kind='scatter', x='rate', y='size')"
INTERRUPT = """
import os, signal, time


class Slow(list):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.01)
            yield batch


def slow(rate=0.1, seed=0) -> dt.Training:
    training = line(rate)
    training.batches = Slow(training.batches)
    return training


long = dt.grid(slow, rate=[0.001], steps=300)
try:  # what the kernel is sent by its menu's Interrupt
    dt.run(long, progress=False, on_metric=lambda *told: os.kill(os.getpid(), signal.SIGINT))
except KeyboardInterrupt:
    print("interrupted")
"""
GO_ON = """
steps = []
(task,) = dt.run(long, progress=False, on_metric=lambda task, name, step, value: steps.append(step)).tasks
print(task.status, task.step, min(steps) > 1)
"""
SHOWN = "[('line rate=0.1', 'finished', 20), ('line rate=0.01', 'finished', 20)]"


@pytest.mark.process
def test_a_notebook_from_its_program_to_its_result(tmp_path):
    import nbclient
    import nbformat

    cells = [PROGRAM, SWEEP, "result.best('size', goal='min').name", AGAIN, EDIT + AGAIN, PICTURE, INTERRUPT, GO_ON]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = spec
    # Its kernel listens on sockets of files, not on ports; else it warns.
    client = nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = "".join(output["text"] for output in notebook.cells[1].outputs if output.output_type == "stream")
    assert SHOWN in printed
    assert "'size'" in printed
    texts = ["".join(each["text"] for each in cell.outputs if "text" in each) for cell in notebook.cells]
    same, edited = texts[3:5]
    assert "[('line rate=0.1', 'finished', True), ('line rate=0.01', 'finished', True)]" in same
    assert "[('line rate=0.1', 'finished', False), ('line rate=0.01', 'finished', False)]" in edited
    assert notebook.cells[2].outputs[0]["data"]["text/plain"] == "'line rate=0.1'"
    assert any("plotly" in kind for output in notebook.cells[5].outputs for kind in output.get("data", {}))
    assert "interrupted" in texts[6]
    assert "finished 300 True" in texts[7]


@pytest.mark.process
def test_a_program_piped_into_python(tmp_path):
    found = subprocess.run(
        [sys.executable, "-"], input=PROGRAM + SWEEP, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert found.returncode == 0, found.stderr
    assert SHOWN in found.stdout
    assert "'size'" in found.stdout
