"""What a warm clone begins with is kept wherever checkpoints are: beside the store, or where fsspec reaches."""

import pytest
import torch

from dovetail.control.daemon import cloning
from dovetail.store import Store, checkpoints_of, settle_checkpoints
from dovetail.train import TrainingState, checkpoint
from dovetail.vocabulary import CheckpointError, read_event


@pytest.fixture(params=["beside", "elsewhere"])
def store(request, tmp_path):
    home = tmp_path / "home"
    with Store(home, write=True) as opened:
        settle_checkpoints(home, f"file://{tmp_path}/there" if request.param == "elsewhere" else None)
        yield opened


def saved(store, step):
    state = TrainingState(step=step, tensors={"model/a": torch.full((3,), float(step))}, values={})
    path, size = checkpoint.write(checkpoints_of(store.home) / "task", state, task="t", attempt=1)
    data = {"step": step, "path": str(path), "bytes": size}
    store.add(events=[read_event("saved", task="task", attempt=1, at_seconds=0.0, data=data)])
    return path


def test_the_last_checkpoint_is_kept_whatever_becomes_of_it(store):
    assert cloning.last_saved(store, "task") is None
    saved(store, 1)
    newest = saved(store, 2)
    found = cloning.last_saved(store, "task")
    assert found == (newest, 2)
    digest = cloning.digest_of(newest)
    clone = checkpoints_of(store.home) / "clone"
    cloning.keep(newest, clone)
    for step in (3, 4):
        saved(store, step)  # and the one that was kept is gone
    assert newest not in checkpoint.complete(checkpoints_of(store.home) / "task")
    assert torch.equal(checkpoint.read_begin(clone, digest=digest).tensors["model/a"], torch.full((3,), 2.0))
    assert checkpoint.complete(clone) == []
    with pytest.raises(CheckpointError, match="that the task begins with"):
        checkpoint.read_begin(clone, digest="0" * 16)


def test_one_that_is_gone_is_told_so(store):
    path = saved(store, 1)
    away = checkpoints_of(store.home) / "task" / "step-000000009-attempt-0001"
    with pytest.raises(CheckpointError, match=r"must hold a readable index\.json"):
        cloning.digest_of(away)
    assert cloning.last_saved(store, "task") == (path, 1)
