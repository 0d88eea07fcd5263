"""The programs on the pages about everyday use and about Ray are what they say."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import dovetail as dt

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def classifier(optimizer="adam", momentum=0.0, width=16, learning_rate=1e-3, seed=0) -> dt.Training:
    model = nn.Linear(4, 2)
    batch = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    return dt.Training(
        model=model,
        batches=[batch],
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum or 0.0),
    )


def test_the_search_draws_what_depends_on_another_only_there():
    names = {"dt": dt, "classifier": classifier}
    exec(blocks_of("everyday.md")[0], names)
    tasks = names["workload"].tasks
    assert len(tasks) == 50
    assert {("momentum" in task.parameters) == (task.parameters["optimizer"] == "sgd") for task in tasks} == {True}


@pytest.mark.process
def test_results_are_read_as_frames(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dt.run(dt.grid(classifier, learning_rate=[1e-2, 1e-3], steps=3, name="digits"), progress=False)
    found, rows, history = blocks_of("everyday.md")[1].splitlines()
    names = {"dt": dt}
    exec(found, names)
    assert len(eval(rows, names)) == 2
    assert set(eval(history, names).columns) >= {"task", "metric", "step", "value"}


def test_the_program_over_shards_names_where_they_lie():
    (block,) = blocks_of("ray.md")[:1]
    names = {"dt": dt, "nn": nn, "torch": torch, "F": functional}
    exec(block, names)
    training = names["classifier"]()
    assert isinstance(training, dt.Training)
    assert [shard.node for shard in training.batches.shards] == ["site=left", "site=right"]
