"""Checkpoints at a real server of S3's protocol, through a proxy that is slow, overloaded, cuts connections, and whose
listings lag: what was acknowledged is found and loads, and nothing half-written is taken for whole."""

import dataclasses
import random
import threading
import time

import pytest
from s3_server import BUCKET, Faults, require_keys

from dovetail.control.daemon import cloning
from dovetail.store import RemoteFolder, raise_fence, settle_checkpoints
from dovetail.train import checkpoint
from dovetail.train.checkpoint import remote_checkpoints
from dovetail.vocabulary import CheckpointError, StoreError
from tests.train.test_checkpoint import INDEX, keep, same, state_at

pytestmark = pytest.mark.process


@pytest.fixture
def root(s3, tmp_path):
    return RemoteFolder(f"s3://{BUCKET}/{tmp_path.name}")


def save(root, step, *, attempt=1, **options):
    return checkpoint.write(root, state_at(step), task="t", attempt=attempt, **options)[0]


def steps(root):
    return [checkpoint.step_of(path) for path in checkpoint.complete(root)]


def test_faults_are_tried_again_and_leave_no_trace(root, s3):
    s3.faults = Faults.share(0.3, slow_seconds=0.01)
    random.seed(5)
    for step in range(1, 5):
        save(root, step, retention=keep(2))
        assert same(checkpoint.recover(root)[0], state_at(step))
    drawn = random.random()
    random.seed(5)
    assert drawn == random.random()  # training draws from this generator; no retry may
    assert steps(root) == [4, 3]
    assert set(s3.counts) == {"slow", "slow_down", "request_cut", "answer_cut"}


def test_what_listings_do_not_show_is_found_kept_and_removed(root, s3):
    s3.faults = Faults(lag_seconds=600.0)
    save(root, 1)
    save(root, 2)
    assert (root.files(), root.names()) == ([], [])
    raise_fence(root, 2)
    state, damages = checkpoint.recover(root)
    assert (state.step, damages) == (2, [])
    for step in (3, 4, 5):
        save(root, step, attempt=2, retention=keep(2))
    assert steps(root) == [5, 4]
    assert not (root / "step-000000002-attempt-0001").has(INDEX)
    cloning.keep(root / "step-000000005-attempt-0002", root / "other")
    assert same(checkpoint.read(root / "other" / "begin"), state_at(5))
    checkpoint.discard(root, up_to_attempt=2)
    assert steps(root) == []
    assert s3.counts["lagging_list"] > 3


def test_an_index_that_is_not_listed_yet_keeps_its_pieces(root, s3):
    path = save(root, 1)
    key = next(key for key in s3.written_keys() if key.endswith(f"{path.url[5:]}/{INDEX}"))
    s3.faults = Faults(lag_seconds=600.0)
    for other in s3.written_keys():
        s3._written[other] = float("inf") if other == key else float("-inf")  # listed: all but the index
    assert f"{path.name}/{INDEX}" not in root.files()
    assert any(name.startswith(path.name) for name in root.files())
    assert checkpoint.recover(root)[0].step == 1
    assert path.has(INDEX)


def test_half_a_checkpoint_is_none(root, s3):
    save(root, 1)
    whole = save(root, 2)
    half = root / "step-000000003-attempt-0001"
    half.write("piece-00000.safetensors", whole.read("piece-00000.safetensors"))
    assert steps(root) == [2, 1]
    whole.write("piece-00000.safetensors", whole.read("piece-00000.safetensors")[:-7])
    state, damages = checkpoint.recover(root)
    assert state.step == 1
    assert "is truncated" in damages[0].reason
    assert half.files() == []


def test_an_outage_ends_the_save_and_nothing_else(root, s3):
    save(root, 1)
    impatient = dataclasses.replace(root, retry_seconds=0.5)
    s3.is_out = True
    with pytest.raises(CheckpointError, match=r"saved at step 2.*found: .*\(tried again for 0.5 s\)\. Earlier"):
        save(impatient, 2)
    with pytest.raises(CheckpointError, match=r"must be reached to see which checkpoints there are"):
        checkpoint.recover(impatient)
    s3.is_out = False
    assert steps(root) == [1]
    assert save(root, 2).name in [path.name for path in checkpoint.complete(root)]


def test_an_outage_shorter_than_the_retries_is_waited_for(root, s3):
    def end_outage():
        while s3.counts["outage"] - before < 3:
            time.sleep(0.01)
        s3.is_out = False

    before, s3.is_out = s3.counts["outage"], True
    end = threading.Thread(target=end_outage)
    end.start()
    save(root, 1)
    end.join()
    assert steps(root) == [1]


def test_a_save_whose_name_cannot_be_noted_is_not_acknowledged(root, s3, monkeypatch):
    save(root, 1)

    def away(*_):
        raise ConnectionResetError("cut")

    monkeypatch.setattr(remote_checkpoints, "note_names", away)
    with pytest.raises(CheckpointError, match="saved at step 2"):
        save(root, 2)
    assert steps(root) == [1]


def test_a_bucket_that_is_not_there_is_said_at_once_and_not_made(s3, tmp_path):
    before = s3.requests
    with pytest.raises(StoreError) as error:
        settle_checkpoints(tmp_path, "s3://no-such-bucket/sweep")
    assert str(error.value) == (
        "checkpoints at s3://no-such-bucket/sweep must be writable; found: there is no bucket 'no-such-bucket'; make "
        "it, or name another."
    )
    assert s3.requests - before < 4
    with pytest.raises(OSError, match="there is no bucket"):
        RemoteFolder("s3://no-such-bucket/sweep").names()


def test_keys_that_are_refused_are_said_at_once(s3, tmp_path):
    before = s3.requests
    require_keys(s3.upstream, required=True)
    try:
        with pytest.raises(StoreError, match=r"found: the server refuses the keys .* set AWS_ACCESS_KEY_ID and"):
            settle_checkpoints(tmp_path, f"s3://{BUCKET}/{tmp_path.name}")
    finally:
        require_keys(s3.upstream, required=False)
    assert s3.requests - before < 4
    assert not list(tmp_path.iterdir())
