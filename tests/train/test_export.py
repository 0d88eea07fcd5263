import dataclasses
import os

import pytest
import safetensors.torch
import torch
from torch import nn

from dovetail.store import folder_beside
from dovetail.testing import programs
from dovetail.train import RESIDENT, SessionMember, Training, checkpoint
from dovetail.train.build import build
from dovetail.train.export import export, load_model
from dovetail.vocabulary import CheckpointError, Program, Stop, StoreError, Task
from tests.faults.other_user import OTHER, as_root


def tied():
    return programs.tied()


def secretive(pwd=""):
    return programs.tied()


class Remembering(nn.Linear):
    """Keeps something that is no tensor in its state dict."""

    def __init__(self):
        super().__init__(4, 1)
        self.note = "new"

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]


def remembering():
    model = Remembering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model, batch):
        model.note = "trained"
        return model(batch).mean()

    return Training(model=model, batches=[torch.ones(2, 4)], loss=loss, optimizer=optimizer)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    return Training(
        model=model,
        batches=[torch.randint(16, (2, 6)) for _ in range(2)],
        loss=lambda model, words: model(input_ids=words, labels=words).loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    )


def trained(function, folder):
    """A task of a program of this file, and its model after three steps, saved in `folder`."""
    program = Program(reference=f"tests.train.test_export:{function}")
    task = Task(name=function, program=program, stop=Stop(steps=3))
    training = build(task)
    session = RESIDENT.open([SessionMember(training=training)], device=torch.device("cpu"), threads=1)
    for _ in range(3):
        session.advance()
    checkpoint.write(folder, session.state(), task=function, attempt=1)
    session.close()
    return task, training.model


def equal(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    return all(torch.equal(t, theirs[name]) for name, t in mine.items() if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("function", ["tied", "remembering", "llama"])
def test_a_trained_model_is_loaded(tmp_path, function):
    task, model = trained(function, tmp_path)
    found = load_model(task, tmp_path)
    assert equal(found, model)
    assert not found.training
    if function == "remembering":
        assert found.note == "trained"


def test_tied_weights_are_exported_once_and_read_back(tmp_path):
    task, model = trained("tied", tmp_path / "in")
    path = export(task, tmp_path / "in", tmp_path / "out")
    assert path == tmp_path / "out" / "model.safetensors"
    assert len(safetensors.torch.load_file(path)) == 3
    fresh = programs.fresh("tied").training.model
    safetensors.torch.load_model(fresh, path)
    assert equal(fresh, model)
    assert fresh.head.weight is fresh.embedding.weight


def test_a_file_may_be_named(tmp_path):
    task, _ = trained("tied", tmp_path / "in")
    path = export(task, tmp_path / "in", tmp_path / "deep" / "mine.safetensors")
    assert path.name == "mine.safetensors"
    assert path.is_file()


def test_a_published_model_has_no_secret_in_the_name_of_its_task(tmp_path):
    task, _ = trained("secretive", tmp_path / "in")
    task = dataclasses.replace(task, name="run-hunter22", parameters={"pwd": "hunter22"})
    path = export(task, tmp_path / "in", tmp_path / "model.safetensors")
    with safetensors.safe_open(path, framework="pt") as found:
        assert found.metadata()["task"] == "run-***"


def test_a_model_from_transformers_is_exported_its_own_way(tmp_path):
    from transformers import LlamaForCausalLM

    task, model = trained("llama", tmp_path / "in")
    path = export(task, tmp_path / "in", tmp_path / "out")
    assert (path / "config.json").is_file()
    assert equal(LlamaForCausalLM.from_pretrained(path), model)


@pytest.mark.parametrize("kind", ["link", "folder", "link to a folder"])
def test_what_is_in_the_way_is_refused_and_stays(tmp_path, kind):
    task, _ = trained("llama" if kind == "link to a folder" else "tied", tmp_path / "in")
    out, target = tmp_path / "out.safetensors", tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("precious")
    if kind == "folder":
        out.mkdir()
    else:
        out.symlink_to(target if kind == "link to a folder" else target / "config.json")
    with pytest.raises(CheckpointError, match="must be a folder" if "to a" in kind else "must be a regular file"):
        export(task, tmp_path / "in", out)
    assert (target / "config.json").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.safetensors", "target"]


def test_another_export_to_the_same_place_is_not_torn(tmp_path):
    task, _ = trained("tied", tmp_path / "in")
    path = tmp_path / "model.safetensors"
    with folder_beside(path) as under_way:
        (under_way / "content").write_bytes(b"half")
        export(task, tmp_path / "in", path)
        assert (under_way / "content").exists()
    assert [each.name for each in tmp_path.iterdir() if each.name != "in"] == ["model.safetensors"]
    safetensors.torch.load_model(programs.fresh("tied").training.model, path)


@as_root
def test_the_program_of_another_users_store_is_not_run(tmp_path):
    task, _ = trained("tied", tmp_path / "in")
    load_model(task, tmp_path / "in", home=tmp_path)
    os.chown(tmp_path, OTHER, OTHER)
    with pytest.raises(StoreError, match="must belong to the user who opens it"):
        load_model(task, tmp_path / "in", home=tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    task, _ = trained("tied", tmp_path / "in")
    (path,) = checkpoint.complete(tmp_path / "in")
    state = checkpoint.read(path)
    tensors = {name: tensor[:1] if tensor.ndim else tensor for name, tensor in state.tensors.items()}
    other = dataclasses.replace(state, tensors=tensors)
    checkpoint.write(tmp_path / "in", other, task="tied", attempt=2)
    with pytest.raises(CheckpointError, match=r"the shape of 'embedding.weight' that the program builds must be"):
        load_model(task, tmp_path / "in")


def test_without_a_checkpoint_there_is_nothing_to_export(tmp_path):
    task, _ = trained("tied", tmp_path / "in")
    with pytest.raises(CheckpointError, match="task 'tied' must have a checkpoint to export; there is none"):
        export(task, tmp_path / "nowhere", tmp_path / "out")
    (piece,) = (tmp_path / "in").rglob("piece-*")
    piece.unlink()
    with pytest.raises(CheckpointError, match="1 damaged ones were passed over"):
        load_model(task, tmp_path / "in")
