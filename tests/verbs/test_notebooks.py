"""Programs that no file holds: written in a notebook, or piped into Python. They travel to workers all the same."""

import asyncio
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
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
SLOW = """
import time


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
"""
# The kernel is interrupted, as by its menu, once this file is there.
INTERRUPT = """
from pathlib import Path

dt.run(long, on_metric=lambda *told: Path("has begun").touch())
"""
GO_ON = """
steps = []
again = dt.run(long, on_metric=lambda task, name, step, value: steps.append(step))
print(again.tasks[0].status, again.tasks[0].step, min(steps) > 1)
"""
SHOWN = "[('line rate=0.1', 'finished', 20), ('line rate=0.01', 'finished', 20)]"


class InterruptingClient(nbclient.NotebookClient):
    """Executes a notebook; interrupts its kernel where a cell asks for it, as the menu's button does."""

    async def async_execute_cell(self, cell, *given, **more):
        if "has begun" in cell.source:
            self._interrupting = asyncio.create_task(self._interrupt())
        return await super().async_execute_cell(cell, *given, **more)

    async def _interrupt(self):
        while not (Path(self.resources["metadata"]["path"]) / "has begun").exists():
            await asyncio.sleep(0.1)
        await self.km.interrupt_kernel()


def execute(cells: list[str], folder: Path):
    """A notebook with these cells, executed in a folder."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    interrupted = notebook.cells[cells.index(INTERRUPT)]
    interrupted.metadata["tags"] = ["raises-exception"]
    InterruptingClient(notebook, timeout=500, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def printed(cell) -> str:
    return "".join(output["text"] for output in cell.outputs if output.output_type == "stream")


def shown(cell) -> list[str]:
    """The HTML that a cell shows."""
    data = [output["data"] for output in cell.outputs if "data" in output]
    return [each["text/html"] for each in data if "text/html" in each]


@pytest.mark.process
def test_a_notebook_from_its_program_to_its_result(tmp_path):
    best = "result.best('size', goal='min').name"
    cells = [PROGRAM, SWEEP, best, AGAIN, EDIT + AGAIN, PICTURE, "plan", "result", SLOW, INTERRUPT, GO_ON]
    done = execute(cells, tmp_path).cells
    assert SHOWN in printed(done[1])
    assert "'size'" in printed(done[1])
    assert done[2].outputs[0]["data"]["text/plain"] == "'line rate=0.1'"
    assert "[('line rate=0.1', 'finished', True), ('line rate=0.01', 'finished', True)]" in printed(done[3])
    assert "[('line rate=0.1', 'finished', False), ('line rate=0.01', 'finished', False)]" in printed(done[4])
    assert any("plotly" in kind for output in done[5].outputs for kind in output.get("data", {}))

    (plan,), (result,) = shown(done[6]), shown(done[7])
    assert plan.count("<rect") == 2
    assert "line rate=0.1" in plan
    assert "makespan" in plan
    assert result.count("<tr>") == 3
    assert "finished" in result

    # One table, that stands as it was when the run ended, and nothing beside it.
    (table,) = shown(done[9])
    assert "slow rate=0.001" in table
    assert "stopped" in table
    assert "everything is saved; run it again to go on" in table
    (error,) = [output for output in done[9].outputs if output.output_type == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    assert "finished 300 True" in printed(done[10])
    (table,) = shown(done[10])
    assert "done · 1 finished" in table


@pytest.mark.slow
@pytest.mark.process
def test_a_program_piped_into_python(tmp_path):
    found = subprocess.run(
        [sys.executable, "-"], input=PROGRAM + SWEEP, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert found.returncode == 0, found.stderr
    assert SHOWN in found.stdout
    assert "'size'" in found.stdout
