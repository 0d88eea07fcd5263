import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.store import raise_fence
from dovetail.train import Training, TrainingState, checkpoint
from dovetail.train.checkpoint import content_hash, local_checkpoints
from dovetail.train.state import capture
from dovetail.vocabulary import CheckpointError


def state_at(step, *, numbers=100):
    tensors = {"model/weight": torch.full((numbers,), float(step)), "model/bias": torch.arange(3)}
    return TrainingState(step=step, tensors=tensors, values={"progress": {"metrics": {"loss": 0.1 * step}}})


def save(root, step, *, attempt=1, **options):
    path, _ = checkpoint.write(root, state_at(step), task="t", attempt=attempt, **options)
    return path


def keep(count, limit=None):
    return checkpoint.Retention(count=count, bytes=limit)


def same(one, other):
    assert one.step == other.step
    assert one.values == other.values
    assert one.tensors.keys() == other.tensors.keys()
    return all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_what_is_written_is_read_back(tmp_path):
    path, size = checkpoint.write(tmp_path, state_at(5), task="t", attempt=1)
    assert path.name == "step-000000005-attempt-0001"
    assert size == sum(file.stat().st_size for file in path.iterdir())
    assert same(checkpoint.read(path), state_at(5))
    assert names(tmp_path) == [path.name]


def test_what_attempts_before_a_fresh_start_saved_is_discarded(tmp_path):
    for step, attempt in ((5, 1), (90, 2), (10, 3)):
        save(tmp_path, step, attempt=attempt, retention=keep(9))
    checkpoint.discard(tmp_path, up_to_attempt=0)
    assert len(names(tmp_path)) == 3
    checkpoint.discard(tmp_path, up_to_attempt=2)
    assert names(tmp_path) == ["step-000000010-attempt-0003"]


def test_a_checkpoint_that_cannot_be_discarded_is_never_gone_on_from(tmp_path, monkeypatch):
    save(tmp_path, 5)
    monkeypatch.setattr(local_checkpoints, "remove", lambda path: None)
    with pytest.raises(CheckpointError, match="must be removed"):
        checkpoint.discard(tmp_path, up_to_attempt=1)


def test_every_kind_of_tensor(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "half": base.bfloat16(),
        "transposed": base.mT,
        "view": base[1],
        "whole": base,
        "flags": base > 3,
    }
    path, _ = checkpoint.write(tmp_path, TrainingState(step=0, tensors=tensors, values={}), task="t", attempt=1)
    found = checkpoint.read(path).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_a_state_without_tensors(tmp_path):
    path, _ = checkpoint.write(tmp_path, TrainingState(step=1, tensors={}, values={"a": 1}), task="t", attempt=1)
    assert checkpoint.read(path).values == {"a": 1}


def test_large_states_are_cut_into_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(local_checkpoints, "PIECE_BYTES", 1000)
    tensors = {f"model/{n}": torch.full((100,), float(n)) for n in range(7)}
    path, _ = checkpoint.write(tmp_path, TrainingState(step=1, tensors=tensors, values={}), task="t", attempt=1)
    assert len(list(path.glob("piece-*"))) == 4
    assert same(checkpoint.read(path), TrainingState(step=1, tensors=tensors, values={}))


def test_the_newest_is_by_step_then_by_attempt(tmp_path):
    for step, attempt in ((5, 1), (5, 12), (3, 40), (1000000000 - 1, 1)):
        save(tmp_path, step, attempt=attempt, retention=keep(9))
    found = [path.name for path in checkpoint.complete(tmp_path)]
    assert found == [f"step-{s:09d}-attempt-{a:04d}" for s, a in ((999999999, 1), (5, 12), (5, 1), (3, 40))]
    assert checkpoint.recover(tmp_path, at_most=100)[0].step == 5
    assert checkpoint.recover(tmp_path, at_most=4)[0].step == 3
    assert checkpoint.recover(tmp_path, at_most=2) == (None, [])
    assert checkpoint.recover(tmp_path / "nowhere") == (None, [])


def test_retention_by_count(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step, retention=keep(3))
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [5, 4, 3]


def test_retention_by_bytes_keeps_the_newest_always(tmp_path):
    size = sum(file.stat().st_size for file in save(tmp_path, 1).iterdir())
    for step in range(2, 6):
        save(tmp_path, step, retention=keep(9, int(2.5 * size)))
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [5, 4]
    save(tmp_path, 6, retention=keep(9, 1))
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [6]


def test_what_dead_writers_left_is_swept_up(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f".writing-{dead.pid}-x", f".writing-{os.getpid()}-x", ".removing-x"):
        (tmp_path / name).mkdir()
    path = save(tmp_path, 1)
    assert names(tmp_path) == sorted([f".writing-{os.getpid()}-x", path.name])


def test_saving_the_same_step_twice_is_saving_once(tmp_path):
    assert save(tmp_path, 3) == save(tmp_path, 3)


# Damage


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def alter(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


PIECE, INDEX = "piece-00000.safetensors", "index.json"
DAMAGES = {
    "truncated piece": (lambda path: truncate(path / PIECE), r"must have \d+ bytes; it has \d+. It is truncated"),
    "altered piece": (lambda path: alter(path / PIECE), "must match its checksum; its bytes were altered"),
    "missing piece": (lambda path: (path / PIECE).unlink(), "must exist; it is missing"),
    "truncated index": (lambda path: truncate(path / INDEX), "must hold a readable index.json"),
    "empty index": (lambda path: (path / INDEX).write_text(""), "must hold a readable index.json"),
    "missing index": (lambda path: (path / INDEX).unlink(), "must hold a readable index.json"),
    "other index": (lambda path: (path / INDEX).write_text('{"index": 5, "sha256": ""}'), "readable index.json"),
    "altered index": (
        lambda path: (path / INDEX).write_text((path / INDEX).read_text().replace("weight", "height", 1)),
        "must match its own checksum; it was altered or torn",
    ),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_the_one_before_is_used_and_the_damaged_set_aside(tmp_path, damage):
    hurt, message = DAMAGES[damage]
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    hurt(path)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path)
    state, damages = checkpoint.recover(tmp_path)
    assert same(state, state_at(1))
    assert [each.path for each in damages] == [path]
    assert names(tmp_path) == ["damaged-step-000000002-attempt-0001", "step-000000001-attempt-0001"]
    assert checkpoint.recover(tmp_path)[1] == []


def failing(monkeypatch, number, *, steps):
    """Reading these steps' pieces fails with an error of the system's."""
    digest = local_checkpoints._digest

    def fails(path):
        if checkpoint.step_of(path.parent) in steps:
            raise OSError(number, "no answer", str(path))
        return digest(path)

    monkeypatch.setattr(local_checkpoints, "_digest", fails)


def test_what_cannot_be_reached_is_not_taken_for_damage(tmp_path, monkeypatch):
    save(tmp_path, 1)
    save(tmp_path, 2)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, errno.ESTALE, steps={2})
        with pytest.raises(CheckpointError, match=r"must be reached; found: .*no answer.* Run again to go on"):
            checkpoint.recover(tmp_path)
    assert names(tmp_path) == before
    assert same(checkpoint.recover(tmp_path)[0], state_at(2))


def test_what_a_disk_fails_to_read_is_passed_over_and_left(tmp_path, monkeypatch):
    save(tmp_path, 1)
    save(tmp_path, 2)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, errno.EIO, steps={2})
        state, damages = checkpoint.recover(tmp_path)
        assert same(state, state_at(1))
        assert [checkpoint.step_of(each.path) for each in damages] == [2]
        failing(patch, errno.EIO, steps={1, 2})
        with pytest.raises(CheckpointError, match="must be reached"):  # not anew, from the first step
            checkpoint.recover(tmp_path)
    assert names(tmp_path) == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_altered_byte_goes_unnoticed(tmp_path, data):
    path = save(tmp_path, 1)
    file = path / data.draw(st.sampled_from([PIECE, INDEX]))
    before = file.read_bytes()
    at, value = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 255))
    file.write_bytes(before[:at] + bytes([value]) + before[at + 1 :])
    try:
        # A byte of JSON may be altered without changing what it says (a space, a letter of an escape).
        assert same(checkpoint.read(path), state_at(1))
    except CheckpointError:
        pass
    finally:
        file.write_bytes(before)


def test_a_newer_format_is_refused(tmp_path):
    path = save(tmp_path, 1)
    rewrite(path, lambda index: index | {"format": checkpoint.format.FORMAT + 1})
    with pytest.raises(CheckpointError, match=r"format 1 or older, it is 2. Upgrade Dovetail"):
        checkpoint.read(path)


def test_a_newer_format_is_not_damage(tmp_path):
    path = save(tmp_path, 1)
    rewrite(path, lambda index: index | {"format": checkpoint.format.FORMAT + 1})
    with pytest.raises(CheckpointError, match="Upgrade Dovetail"):
        checkpoint.recover(tmp_path)
    assert path.exists()


def rewrite(path, change):
    body = json.dumps(change(json.loads(json.loads((path / INDEX).read_text())["index"])))
    (path / INDEX).write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "index": body}))


# Slices: what several ranks write, one reads


def sliced(tmp_path, starts):
    """A checkpoint in which the weight of step 1 lies in slices of 50, one a piece."""
    path = save(tmp_path, 1)
    (path / PIECE).unlink()
    pieces, slices = [], []
    for number, start in enumerate(starts):
        file = path / f"piece-{number:05d}.safetensors"
        safetensors.torch.save_file({"part": torch.arange(100.0)[start : start + 50].contiguous()}, file)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        pieces.append({"file": file.name, "bytes": file.stat().st_size, "sha256": digest})
        slices.append({"piece": number, "name": "part", "start": [start], "shape": [50]})
    weight = {"dtype": "float32", "shape": [100], "slices": slices}
    rewrite(path, lambda index: index | {"pieces": pieces, "tensors": {"model/weight": weight}})
    return path


def test_slices_are_put_together(tmp_path):
    assert torch.equal(checkpoint.read(sliced(tmp_path, [50, 0])).tensors["model/weight"], torch.arange(100.0))


def test_slices_that_do_not_cover_are_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"slices of 'model/weight' in .* must cover it once; 50 of 100 numbers are there"
    ):
        checkpoint.read(sliced(tmp_path, [0]))


SLICES = {
    "overlapping": (lambda slices: slices[1].update(start=[20]), "two of them overlap"),
    "beyond its end": (lambda slices: slices[1].update(start=[60]), r"reaches beyond \[100\]"),
    "before its beginning": (lambda slices: slices[1].update(start=[-50]), r"reaches beyond \[100\]"),
    "of another shape": (lambda slices: slices[1].update(shape=[5, 10], start=[50, 0]), r"said to be \[5, 10\] of"),
    "of one more dimension": (lambda slices: slices[1].update(start=[50, 0]), "shorter|longer|ValueError"),
}


@pytest.mark.parametrize("kind", SLICES)
def test_slices_that_do_not_fit_are_refused_whatever_their_checksums_say(tmp_path, kind):
    hurt, message = SLICES[kind]
    path = sliced(tmp_path, [0, 50])

    def change(index):
        hurt(index["tensors"]["model/weight"]["slices"])
        return index

    rewrite(path, change)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path)


INDICES = {
    "a tensor of another shape": (lambda one, index: one.update(shape=[50, 2]), r"reaches beyond \[50, 2\]"),
    "a larger one": (lambda one, index: one.update(shape=[200]), "100 of 200 numbers are there"),
    "a shape that its slice does not have": (
        lambda one, index: (one.update(shape=[50]), one["slices"][0].update(shape=[50])),
        r"is said to be \[50\] of torch.float32 and is \[100\]",
    ),
    "another type": (lambda one, index: one.update(dtype="int32"), r"of torch.int32 and is \[100\] of torch.float32"),
    "another step": (lambda one, index: index.update(step=7), "must be of the step in its name; its index says step 7"),
    "a piece elsewhere": (lambda one, index: index["pieces"][0].update(file="../x"), "must lie in it"),
}


@pytest.mark.parametrize("kind", INDICES)
def test_an_index_that_says_something_else_than_its_pieces_is_refused(tmp_path, kind):
    hurt, message = INDICES[kind]
    path = save(tmp_path, 1)

    def change(index):
        hurt(index["tensors"]["model/weight"], index)
        return index

    rewrite(path, change)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path)


# Who may write, and where


def test_nobody_else_can_read_it(tmp_path):
    path = save(tmp_path / "task", 1)
    assert [each.stat().st_mode & 0o777 for each in (path.parent, path, path / INDEX)] == [0o700, 0o700, 0o600]


def test_folders_that_others_named_like_a_writers_are_left_alone(tmp_path):
    for name in (".writing-somebody-x", ".writing-"):
        (tmp_path / name).mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / ".writing-99999999-x").symlink_to(tmp_path / "precious")
    save(tmp_path, 1)
    assert (tmp_path / "precious").is_dir()
    assert {".writing-somebody-x", ".writing-"} < set(names(tmp_path))


def test_a_stale_attempt_writes_nothing(tmp_path):
    save(tmp_path, 1)
    raise_fence(tmp_path, 2)
    with pytest.raises(CheckpointError, match="newest attempt, 2; this is attempt 1"):
        save(tmp_path, 2, attempt=1)
    assert names(tmp_path) == ["attempt", "step-000000001-attempt-0001"]
    save(tmp_path, 2, attempt=2)


FULL = """
import dataclasses, resource, signal, sys
from pathlib import Path
import torch
from dovetail.train import TrainingState, checkpoint
from dovetail.vocabulary import CheckpointError
root, limit, numbers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
state = TrainingState(step=9, tensors={"model/weight": torch.zeros(numbers)}, values={})
if sys.argv[4:]:
    state = dataclasses.replace(state, values={"long": "x" * int(sys.argv[4])})
try:
    checkpoint.write(root, state, task="big", attempt=1)
except CheckpointError as error:
    print(error)
"""


def message_of(root, *, limit=0, numbers=1, values=0):
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(root), str(limit), str(numbers), *([str(values)] if values else [])],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout


@pytest.mark.parametrize("what", [{"numbers": 1 << 20}, {"values": 1 << 20}])
def test_a_file_that_may_not_grow(tmp_path, what):
    path = save(tmp_path, 1)
    message = message_of(tmp_path, limit=100_000, **what)
    assert "the disk must have room to save task 'big' at step 9" in message
    assert "Earlier checkpoints are untouched" in message
    assert names(tmp_path) == [path.name]
    assert same(checkpoint.read(path), state_at(1))


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting needs privileges: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk):
    root = small_disk / "task"
    path = save(root, 1)
    message = message_of(root, numbers=1 << 20)
    assert "the disk must have room to save task 'big' at step 9: about 4.0 MiB" in message
    assert "are free" in message
    assert names(root) == [path.name]
    assert same(checkpoint.read(path), state_at(1))


def test_a_place_that_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="task 't' could not be saved at step 1"):
        save(tmp_path / "file" / "task", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; the test above stands in")
def test_a_place_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="must be writable to save task 't'; permission was denied"):
        save(tmp_path / "task", 1)


KILLED = """
import sys, torch
from pathlib import Path
from dovetail.train import TrainingState, checkpoint
step = int(sys.argv[2])
print("ready", flush=True)
while True:
    step += 1
    state = TrainingState(step=step, tensors={"a": torch.full((200_000,), float(step))}, values={})
    checkpoint.write(Path(sys.argv[1]), state, task="t", attempt=1)
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_whole_checkpoints_only(tmp_path):
    step = 0
    for kill in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(step)], stdout=subprocess.PIPE, text=True
        ) as writer:
            for _ in range(4 + kill):
                last = writer.stdout.readline()
            writer.kill()
            last = [last, *writer.stdout][-1]
        state, damages = checkpoint.recover(tmp_path)
        assert damages == []
        assert state.step in (int(last), int(last) + 1)
        assert torch.equal(state.tensors["a"], torch.full((200_000,), float(state.step)))
        step = state.step


def test_an_index_that_is_signed_but_incomplete_is_damage_too(tmp_path):
    state = TrainingState(step=1, tensors={"model/a": torch.ones(2)}, values={})
    older, _ = checkpoint.write(tmp_path, state, task="t", attempt=1)
    newer, _ = checkpoint.write(tmp_path, TrainingState(step=2, tensors={}, values={}), task="t", attempt=1)
    body = json.dumps({"format": 1, "step": 2, "pieces": []})
    signed = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "index": body}
    (newer / "index.json").write_text(json.dumps(signed))
    found, (damage,) = checkpoint.recover(tmp_path, set_aside=False)
    assert found.step == 1
    assert "must be a whole checkpoint; reading it gave KeyError('tensors')" in damage.reason
    assert newer.is_dir()
    assert older.is_dir()


def test_a_disk_without_room_is_not_filled_to_find_that_out(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    written = []
    monkeypatch.setattr(safetensors.torch, "save_file", lambda *arguments: written.append(arguments))
    with pytest.raises(CheckpointError, match="the disk must have room to save task 'a' at step 3"):
        checkpoint.write(tmp_path / "a", state_at(3), task="a", attempt=1)
    assert not written
    assert list((tmp_path / "a").iterdir()) == []


def with_base(step, base, *, frozen=True):
    return TrainingState(
        step=step,
        tensors={"model/base": base, "model/adapter": torch.full((3,), float(step))},
        values={},
        frozen=frozenset({"model/base"} if frozen else ()),
    )


def files_of(path):
    return {file.stat().st_ino for file in path.glob("piece-*")}


@pytest.fixture
def base(monkeypatch):
    monkeypatch.setattr(local_checkpoints, "FROZEN_BYTES", 1)
    return torch.randn(1001, dtype=torch.float64).bfloat16()  # an odd number of halves of a word


def test_weights_that_are_not_trained_are_written_once(tmp_path, base):
    one, _ = checkpoint.write(tmp_path / "one", with_base(5, base), task="t", attempt=1)
    later, _ = checkpoint.write(tmp_path / "one", with_base(6, base.clone()), task="t", attempt=1)
    other, _ = checkpoint.write(tmp_path / "other", with_base(5, base), task="u", attempt=1)
    assert len(files_of(one) & files_of(later) & files_of(other)) == 1
    assert len(files_of(one) | files_of(later) | files_of(other)) == 4
    shutil.rmtree(one)
    for path, step in ((later, 6), (other, 5)):
        found = checkpoint.read(path)
        assert torch.equal(found.tensors["model/base"], base)
        assert torch.equal(found.tensors["model/adapter"], torch.full((3,), float(step)))


def test_weights_that_were_said_to_be_frozen_and_changed_are_written_anew(tmp_path, base):
    one, _ = checkpoint.write(tmp_path, with_base(5, base), task="t", attempt=1)
    before = base.clone()
    base.data[-1] += 1  # no version counts this, and no optimizer knows it
    later, _ = checkpoint.write(tmp_path, with_base(6, base), task="t", attempt=1)
    assert not files_of(one) & files_of(later)
    assert torch.equal(checkpoint.read(one).tensors["model/base"], before)
    assert torch.equal(checkpoint.read(later).tensors["model/base"], base)


@pytest.mark.parametrize("size", [1, 4, 9, 5000])
def test_an_accelerators_tensors_are_told_apart_where_they_lie(size, monkeypatch):
    monkeypatch.setattr(content_hash, "_WORDS", 16)
    content_hash._weights.cache_clear()
    flat = torch.randint(256, (size,), dtype=torch.uint8)
    same = content_hash._sums(flat.clone())
    assert content_hash._sums(flat) == same
    for place in {0, size // 2, size - 1}:
        other = flat.clone()
        other[place] ^= 1
        assert content_hash._sums(other) != same
    if size > 16:
        assert content_hash._sums(flat.roll(4)) != same  # the same words elsewhere
    content_hash._weights.cache_clear()


def test_without_links_they_are_written_again(tmp_path, base, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    one, _ = checkpoint.write(tmp_path, with_base(5, base), task="t", attempt=1)
    monkeypatch.setattr(os, "link", refuse)
    later, _ = checkpoint.write(tmp_path, with_base(6, base), task="t", attempt=1)
    assert not files_of(one) & files_of(later)
    assert torch.equal(checkpoint.read(later).tensors["model/base"], base)


def test_what_is_not_trained_is_known_of_a_captured_state():
    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.nn.Linear(4, 4)
            self.base.requires_grad_(False)
            self.adapter = torch.nn.Linear(4, 4)

    model = Adapted()
    training = Training(
        model=model,
        batches=[torch.zeros(1, 4)],
        loss=lambda model, x: model.adapter(model.base(x)).sum(),
        optimizer=torch.optim.SGD(model.adapter.parameters()),
    )
    state = capture(training, step=1, feed=None, random=None)
    assert state.frozen == {"model/base.weight", "model/base.bias"}
