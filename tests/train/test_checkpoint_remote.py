"""Checkpoints on a path of fsspec: the index is written last, and makes a checkpoint exist."""

import pytest
import torch

from dovetail.store import RemoteFolder, raise_fence
from dovetail.train import TrainingState, checkpoint
from dovetail.train.checkpoint import remote_checkpoints
from dovetail.vocabulary import CheckpointError
from tests.train.test_checkpoint import DAMAGES, INDEX, keep, names, same, state_at


@pytest.fixture
def root(tmp_path):
    return RemoteFolder(f"file://{tmp_path}")


def save(root, step, *, attempt=1, **options):
    return checkpoint.write(root, state_at(step), task="t", attempt=attempt, **options)[0]


def test_what_is_written_is_read_back_in_any_number_of_pieces(root, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_checkpoints, "PIECE_BYTES", 1000)
    tensors = {f"model/{n}": torch.full((100,), float(n)) for n in range(7)} | {"view": torch.arange(9.0)[3:]}
    state = TrainingState(step=1, tensors=tensors, values={"a": 1})
    path, size = checkpoint.write(root, state, task="t", attempt=1)
    files = list((tmp_path / path.name).iterdir())
    assert size == sum(file.stat().st_size for file in files)
    assert len(files) == 5
    assert same(checkpoint.read(path), state)
    assert checkpoint.write(root, state, task="t", attempt=1) == (path, size)


def test_on_this_machine_nobody_else_can_read_it(tmp_path):
    path = save(RemoteFolder(f"file://{tmp_path}/task"), 3)
    folder = tmp_path / "task" / path.name
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_the_same_format_as_in_a_directory(root, tmp_path):
    path = save(root, 3)
    assert same(checkpoint.read(tmp_path / path.name), state_at(3))


def test_without_its_index_it_does_not_exist_and_the_one_before_is_used(root, tmp_path):
    save(root, 1)
    path = save(root, 2)
    (tmp_path / path.name / INDEX).unlink()
    assert [each.name for each in checkpoint.complete(root)] == ["step-000000001-attempt-0001"]
    state, damages = checkpoint.recover(root)
    assert (state.step, damages) == (1, [])
    assert names(tmp_path) == ["attempt", "saved-attempt-0001.json", "step-000000001-attempt-0001"]


@pytest.mark.parametrize("damage", sorted(set(DAMAGES) - {"missing index"}))
def test_the_one_before_is_used_and_the_damaged_one_is_none_any_more(root, tmp_path, damage):
    hurt, message = DAMAGES[damage]
    save(root, 1)
    path = save(root, 2)
    hurt(tmp_path / path.name)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path)
    state, damages = checkpoint.recover(root)
    assert same(state, state_at(1))
    assert [each.path for each in damages] == [path]
    assert checkpoint.recover(root)[1] == []
    assert "damaged-index.json" in names(tmp_path / path.name)


def test_retention(root):
    for step in range(1, 6):
        save(root, step, retention=keep(3))
    assert [checkpoint.step_of(path) for path in checkpoint.complete(root)] == [5, 4, 3]
    save(root, 6, retention=keep(9, 1))
    assert [checkpoint.step_of(path) for path in checkpoint.complete(root)] == [6]


def test_a_stale_attempt_writes_nothing(root, tmp_path):
    save(root, 1)
    raise_fence(root, 2)
    with pytest.raises(CheckpointError, match="newest attempt, 2; this is attempt 1"):
        save(root, 2, attempt=1)
    assert names(tmp_path) == ["attempt", "saved-attempt-0001.json", "step-000000001-attempt-0001"]
    save(root, 2, attempt=2)


def test_what_cannot_be_reached_is_not_taken_for_damage(root, tmp_path, monkeypatch):
    path = save(root, 1)

    def away(self, name):
        raise TimeoutError("the server does not answer")

    monkeypatch.setattr(RemoteFolder, "read", away)
    for look in (lambda: checkpoint.recover(root), lambda: checkpoint.read(path)):
        with pytest.raises(CheckpointError, match=r"must be reached.*; found: the server does not answer"):
            look()
    assert INDEX in names(tmp_path / path.name)


def test_a_save_that_cannot_tidy_up_is_a_save(root, monkeypatch):
    save(root, 1)
    listed = []

    def away(self):
        listed.append(self)
        raise TimeoutError("the server does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "files", away)
        save(root, 2)
    assert listed
    assert [checkpoint.step_of(path) for path in checkpoint.complete(root)] == [2, 1]


def test_what_a_listing_does_not_show_yet_is_found_by_its_noted_name(root, monkeypatch):
    """Also by an attempt that comes after several that saved nothing."""
    save(root, 1)
    save(root, 2)
    raise_fence(root, 4)
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "files", lambda self: [])
        assert [checkpoint.step_of(path) for path in checkpoint.complete(root)] == [2, 1]
        assert checkpoint.recover(root)[0].step == 2
        checkpoint.discard(root, up_to_attempt=3)
    assert checkpoint.complete(root) == []


def test_what_a_listing_shows_without_its_index_is_not_removed(root, tmp_path, monkeypatch):
    path = save(root, 1)
    list_files = RemoteFolder.files
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "files", lambda self: [f for f in list_files(self) if not f.endswith(INDEX)])
        assert checkpoint.recover(root)[0].step == 1
    assert INDEX in names(tmp_path / path.name)


def test_an_attempt_that_wakes_late_hides_nothing_of_its_successor(root, monkeypatch):
    save(root, 1)
    raise_fence(root, 2)
    save(root, 5, attempt=2)
    remote_checkpoints.note_names(root, 1, ["step-000000002-attempt-0001"])
    monkeypatch.setattr(RemoteFolder, "files", lambda self: [])
    assert [checkpoint.step_of(path) for path in checkpoint.complete(root)] == [5, 1]


def test_names_that_are_torn_are_none(root, tmp_path):
    save(root, 1)
    (tmp_path / "saved-attempt-0001.json").write_text('{"sha256": "0", "na')
    assert [checkpoint.step_of(path) for path in checkpoint.complete(root)] == [1]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"task 't' must be saved at step 1, about .* at file:.*; found: "):
        save(RemoteFolder(f"file://{tmp_path}/file/task"), 1)
