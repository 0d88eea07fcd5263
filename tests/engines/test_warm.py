"""A task that begins with another's weights: with them, and with nothing else of it."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.control.daemon import cloning
from dovetail.engines import MemberOrder
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.train.build import build
from tests.engines.test_runner import TIGHT, Ground, same


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def cloned(ground: Ground, other: MemberOrder, *, steps: int, name: str, **parameters: Any) -> MemberOrder:
    """A warm clone of a member that has trained."""
    saved = checkpoint.complete(Path(other.directory))[0]
    member = ground.member(other.task.program.function, steps=steps, name=name, **parameters)
    cloning.keep(saved, Path(member.directory))
    task = dataclasses.replace(member.task, begins_with=cloning.digest_of(saved))
    return dataclasses.replace(member, task=task)


def as_if_built_so(member: MemberOrder, weights: dict[str, torch.Tensor], steps: int) -> dict[str, torch.Tensor]:
    """What the task learns where its program itself had built its model with these weights."""
    training = build(member.task)
    training.model.load_state_dict({name.removeprefix("model/"): t for name, t in weights.items() if "model/" in name})
    session = RESIDENT.open(
        [SessionMember(training=training, seed=member.task.seed)], device=torch.device("cpu"), threads=1
    )
    for _ in range(steps):
        session.advance()
    state = session.state()
    session.close()
    return dict(state.tensors)


@pytest.mark.parametrize(("technique", "knobs"), [("resident", {}), ("spill", TIGHT)])
def test_it_learns_what_it_would_had_its_program_built_these_weights(
    ground: Ground, technique: str, knobs: dict[str, Any]
) -> None:
    first = ground.member("tower", steps=7, name="first")
    ground.run("train", [first], "resident")
    second = cloned(ground, first, steps=5, name="second", seed=3)
    ground.run("train", [second], technique, knobs=knobs)
    assert ground.ends(second) == ["finished"]
    assert ground.of(second, "finished")[0].step == 5
    assert same(ground.saved(second), as_if_built_so(second, ground.saved(first), 5))
    fresh = ground.member("tower", steps=5, name="fresh", seed=3)
    ground.run("train", [fresh], "resident")
    assert not same(ground.saved(second), ground.saved(fresh))


def test_in_a_gang_only_the_clone_begins_warm(ground: Ground) -> None:
    first = ground.member("tower", steps=7, name="first")
    ground.run("train", [first], "resident")
    warm, cold = cloned(ground, first, steps=4, name="warm"), ground.member("tower", steps=4, name="cold")
    ground.run("train", [warm, cold], "interleave")
    alone = ground.member("tower", steps=4, name="alone")
    ground.run("train", [alone], "resident")
    assert same(ground.saved(warm), as_if_built_so(warm, ground.saved(first), 4))
    assert same(ground.saved(cold), ground.saved(alone))


def test_once_it_has_saved_it_goes_on_from_there(ground: Ground) -> None:
    first = ground.member("tower", steps=7, name="first")
    ground.run("train", [first], "resident")
    second = cloned(ground, first, steps=3, name="second")
    ground.run("train", [second], "resident")
    ground.run("train", [dataclasses.replace(second, until_step=6)], "resident")
    assert same(ground.saved(second), as_if_built_so(second, ground.saved(first), 6))


def test_what_it_begins_with_stays_when_the_other_goes_on_and_drops_it(ground: Ground) -> None:
    first = ground.member("tower", steps=3, name="first")
    ground.run("train", [first], "resident")
    before = ground.saved(first)
    second = cloned(ground, first, steps=3, name="second")
    shutil.rmtree(first.directory)
    ground.run("train", [second], "resident")
    assert same(ground.saved(second), as_if_built_so(second, before, 3))


def test_another_model_is_refused_with_what_to_do(ground: Ground) -> None:
    first = ground.member("tower", steps=3, name="first")
    ground.run("train", [first], "resident")
    other = ground.member("diverging", steps=3, name="other", at=99)
    cloning.keep(checkpoint.complete(Path(first.directory))[0], Path(other.directory))
    digest = cloning.digest_of(Path(other.directory, "begin"))
    other = dataclasses.replace(other, task=dataclasses.replace(other.task, begins_with=digest))
    ground.run("train", [other], "resident")
    (failed,) = ground.of(other, "failed")
    assert "must build the model whose weights it begins with, those of step 3: " in failed.reason
    assert failed.reason.endswith("Clone with --fresh where parameters change the model.")


@pytest.mark.parametrize("damage", ["gone", "altered", "another"])
def test_it_never_begins_with_anything_else(ground: Ground, damage: str) -> None:
    first = ground.member("tower", steps=3, name="first")
    ground.run("train", [first], "resident")
    second = cloned(ground, first, steps=3, name="second")
    begin = Path(second.directory, "begin")
    if damage == "gone":
        shutil.rmtree(begin)
    elif damage == "altered":
        piece = begin / "piece-00000.safetensors"
        data = bytearray(piece.read_bytes())
        data[-1] ^= 1
        piece.unlink()  # a link: the original stays as it is
        piece.write_bytes(data)
    else:
        third = ground.member("tower", steps=2, name="third")
        ground.run("train", [third], "resident")
        cloning.keep(checkpoint.complete(Path(third.directory))[0], Path(second.directory))
    ground.run("train", [second], "resident")
    (failed,) = ground.of(second, "failed")
    assert str(begin) in failed.reason


def test_a_clone_and_a_fresh_task_of_one_name_are_two(ground: Ground) -> None:
    task = ground.member("tower", steps=3).task
    assert dataclasses.replace(task, begins_with="ab").identity != task.identity
