"""A sweep of a Lightning module through `dt.run`: as one program, and stopped on the way, it ends alike."""

import pytest

import dovetail as dt
from dovetail.describe import load_workload
from dovetail.store import Store
from dovetail.train.build import build
from dovetail.vocabulary.events import AttemptStarted
from tests.adapters.sessions import taken

SWEEP = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

import dovetail as dt


class Squares(L.LightningModule):
    def __init__(self, learning_rate):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("squares", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_squares", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)


def program(learning_rate=0.1, seed=0):
    data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    loaders = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)
    return dt.from_lightning(Squares(learning_rate), loaders)


workload = dt.grid(program, learning_rate=[0.05, 0.1], steps=20)
"""


@pytest.mark.process
def test_a_sweep_is_fused_and_ends_as_tasks_that_train_alone(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    workload = load_workload(str(tmp_path / "sweep.py"))
    result = dt.run(workload, store=tmp_path / "store", techniques="fuse", progress=False)
    with Store(tmp_path / "store") as store:
        started = [event for _, event in store.events() if isinstance(event, AttemptStarted)]
    assert {event.option.technique for event in started if event.option} == {"fuse"}
    for task, found in zip(workload.tasks, result.tasks, strict=True):
        alone = taken(build(task), 20, seed=task.seed)
        assert found.value("train/squares") == pytest.approx(alone[-1], abs=1e-6)
        assert found.value("val_squares") > 0


@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_that_is_given_more_steps_goes_on_to_the_bit(tmp_path):
    stores = tmp_path / "whole", tmp_path / "stopped"
    for steps, store in ((20, stores[0]), (13, stores[1]), (20, stores[1])):
        (tmp_path / "sweep.py").write_text(SWEEP.replace("steps=20", f"steps={steps}"))
        workload = load_workload(str(tmp_path / "sweep.py"))
        dt.run(workload, store=store, techniques="resident", progress=False)
    whole, stopped = (dt.open_result(store).tasks for store in stores)
    for one, other in zip(whole, stopped, strict=True):
        assert one.value("train/loss") == other.value("train/loss")
