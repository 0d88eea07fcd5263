"""Which stores a controller on this machine takes, what it says of them, and what it leaves behind when it ends."""

import os
import shutil

import pytest

from dovetail.control import Settings
from dovetail.describe import grid
from dovetail.engines import detect
from dovetail.store import Store, make_scratch
from dovetail.verbs.controller import open_controller
from dovetail.vocabulary import StoreError
from dovetail.vocabulary.events import Warned
from tests.faults.other_user import OTHER, as_root
from tests.store.test_acknowledged import submit


def test_what_killed_workers_left_in_scratch_is_gone_when_the_controller_ends(tmp_path):
    workload = grid("dovetail.testing.programs:dropout", seed=[0], steps=1)
    before = make_scratch(tmp_path, prefix="meeting-")
    with open_controller(workload, cluster=detect(), home=tmp_path, settings=Settings()):
        assert not before.exists()
        left = make_scratch(tmp_path, prefix="tmp")
        (left / "half.safetensors").write_bytes(b"half")
        coming = make_scratch(tmp_path, prefix="control-")  # of one that waits for the lock
    assert not left.exists()
    assert coming.exists()


def opened(home):
    workload = grid("dovetail.testing.programs:dropout", seed=[0], steps=1)
    return open_controller(workload, cluster=detect(), home=home, settings=Settings())


def test_a_scratch_that_is_a_link_ends_it_before_anything_is_removed(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "tmp-data").write_text("precious")
    (tmp_path / "store" / "scratch").symlink_to(tmp_path / "disk")
    with pytest.raises(StoreError, match="scratch must be the store's own"), opened(tmp_path / "store"):
        pass
    assert (tmp_path / "disk" / "tmp-data").exists()


@as_root
def test_a_store_that_another_user_left_there_is_not_taken_up(tmp_path):
    with Store(tmp_path / "store", write=True) as store:
        submit(store, "theirs")
    for path in (tmp_path / "store", *(tmp_path / "store").iterdir()):
        os.chown(path, OTHER, OTHER)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="must belong to the user who opens it"), opened(tmp_path / "store"):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_missing_is_put_on_record_and_the_run_goes_on(tmp_path):
    home = tmp_path / "store"
    with Store(home, write=True) as store:
        submit(store, "first")
    shutil.copy(home / "store.sqlite", tmp_path)
    with Store(home, write=True) as store:
        submit(store, "second")
    shutil.copy(tmp_path / "store.sqlite", home)
    for _ in range(2):
        with opened(home) as controller:
            controller.reconcile()
            said = [event.message for _, event in controller.store.events() if isinstance(event, Warned)]
        (told,) = [message for message in said if "acknowledged" in message]
        assert "1 events after event 1 and 1 tasks (second) that were acknowledged are missing" in told
