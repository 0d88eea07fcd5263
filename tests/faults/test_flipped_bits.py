"""One flipped bit in any file that is read back: it is detected and named, and the last good state is used. A bit that
nothing is kept in changes nothing."""

import contextlib
import random
import shutil
from pathlib import Path

import pytest
import torch

from dovetail.describe import carried
from dovetail.store import Point, Store, check_fence, raise_fence, write_atomically
from dovetail.train import TrainingState, checkpoint
from dovetail.vocabulary import (
    CheckpointError,
    Profile,
    Program,
    ProgramError,
    Stop,
    StoreError,
    Task,
    read_event,
)

FLIPS = 60
TASK = Task(name="a", program=Program(reference="dovetail.testing.programs:tied"), stop=Stop(steps=3))


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    bit = chance.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def state_at(step: int) -> TrainingState:
    return TrainingState(step=step, tensors={"w": torch.arange(50.0) * step}, values={"progress": {"points": []}})


@pytest.mark.parametrize("name", ["piece-00000.safetensors", "index.json"])
def test_a_checkpoint_is_passed_over_for_the_one_before(tmp_path, name):
    for step in (10, 20):
        checkpoint.write(tmp_path / "whole", state_at(step), task="t", attempt=1)
    for seed in range(FLIPS):
        folder = tmp_path / f"flipped-{seed}"
        shutil.copytree(tmp_path / "whole", folder)
        flip(folder / "step-000000020-attempt-0001" / name, random.Random(seed))
        found, damages = checkpoint.recover(folder)
        if not damages:  # white space in the index, or the case of a digest's letter, may change nothing
            assert found.step == 20
            assert torch.equal(found.tensors["w"], state_at(20).tensors["w"])
            continue
        assert "step-000000020-attempt-0001" in damages[0].reason
        assert found.step == 10
        assert torch.equal(found.tensors["w"], state_at(10).tensors["w"])
        assert (folder / "damaged-step-000000020-attempt-0001").is_dir(), "it is set aside"


def filled(home: Path) -> None:
    with Store(home, write=True) as store:
        store.add(
            tasks=[("w", TASK)],
            events=[read_event("warned", at_seconds=n / 3, data={"message": f"word {n}"}) for n in range(40)],
            points=[Point(task=TASK.identity, name="loss", step=n, value=n / 7, at_seconds=n / 3) for n in range(60)],
            profiles=[Profile(family="f", kind="cpu", count=1, step_seconds=1 / 3, peak_bytes=7)],
            hardware=[("note", TASK)],
        )


def contents(store: Store) -> list[object]:
    tasks = store.tasks()
    return [tasks, list(store.events()), store.points(TASK.identity), store.profiles(), store.hardware("note", Task)]


@pytest.mark.parametrize("seed", range(FLIPS))
def test_a_store_falls_back_to_its_copy_and_no_reader_is_told_something_else(tmp_path, seed):
    filled(tmp_path)
    with Store(tmp_path) as store:
        before = contents(store)
    flip(tmp_path / "store.sqlite", random.Random(seed))
    with contextlib.suppress(StoreError), Store(tmp_path) as store:
        assert contents(store) == before
    with Store(tmp_path, write=True) as store:
        assert contents(store) == before
        assert bool(store.fell_back) == (tmp_path / "damaged-store.sqlite").exists()


def test_most_flips_are_found_and_a_value_is_named_by_its_table(tmp_path):
    filled(tmp_path)
    content = (tmp_path / "store.sqlite").read_bytes()
    (tmp_path / "store.sqlite").write_bytes(content.replace(b"word 17", b"word 57"))
    with Store(tmp_path) as store, pytest.raises(StoreError, match="a row of its table events does not match its"):
        list(store.events())
    with Store(tmp_path, write=True) as store:
        assert store.fell_back == "row 18 of its table events does not match its checksum"
        assert any(event.message == "word 17" for _, event in store.events())


def test_a_damaged_store_without_a_sound_copy_is_refused_and_left_alone(tmp_path):
    filled(tmp_path)
    for name in ("store.sqlite", "store.sqlite.last"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes().replace(b"word 17", b"word 57"))
    before = (tmp_path / "store.sqlite").read_bytes()
    with pytest.raises(StoreError, match="row 18 of its table events does not match its checksum"):
        Store(tmp_path, write=True)
    assert (tmp_path / "store.sqlite").read_bytes() == before


def test_a_fence_is_named_and_raised_anew(tmp_path):
    for seed in range(FLIPS):
        raise_fence(tmp_path, 12)
        flip(tmp_path / "attempt", random.Random(seed))
        with pytest.raises(CheckpointError, match="attempt must match its checksum; its bytes were altered"):
            check_fence(tmp_path, 12)
        raise_fence(tmp_path, 13)
        check_fence(tmp_path, 13)


@pytest.mark.parametrize("name", ["dovetail/key", "programs/carried.pickle"])
def test_a_program_is_not_loaded_and_deposited_anew(tmp_path, name, monkeypatch):
    monkeypatch.setattr(carried, "_CARRIED", {})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    carried.carry("carried", lambda: 42)
    for seed in range(FLIPS):
        carried.deposit(tmp_path, write=write_atomically)
        flip(tmp_path / name, random.Random(seed))
        with pytest.raises(ProgramError, match=r"carried\.pickle must carry this user's signature; it does not"):
            carried.fetch(tmp_path, "carried")
        carried.deposit(tmp_path, write=write_atomically)
        assert carried.fetch(tmp_path, "carried")() == 42
