"""A store names code that is run, so it must belong to whoever opens it, and nobody else may write it."""

import os

import pytest

from dovetail.store import Store, check_private, make_private, ownership
from dovetail.vocabulary import StoreError, read_event
from tests.faults.other_user import OTHER, as_root


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "store"
    with Store(home, write=True) as store:
        store.add(events=[read_event("warned", at_seconds=0.0, data={"message": "theirs"})])
    return home


def give(*paths):
    for path in paths:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)


def read(home):
    with Store(home) as store:
        return [event.message for _, event in store.events()]


@as_root
@pytest.mark.parametrize("name", ["", "store.sqlite", "store.sqlite.last", "acknowledged"])
def test_a_store_of_another_user_is_refused_to_who_writes_and_not_to_who_reads(home, name):
    give(home / name)
    with pytest.raises(StoreError, match=rf"must belong to the user who opens it.*user {OTHER}.*chown -R 0 .*store"):
        Store(home, write=True)
    assert read(home) == ["theirs"]
    os.chown(home / name, 0, 0)
    Store(home, write=True).close()


@as_root
def test_a_database_that_is_gone_is_not_made_anew_from_the_copy_of_another_user(home):
    (home / "store.sqlite").unlink()
    give(home)
    with pytest.raises(StoreError, match="must belong to the user"):
        Store(home, write=True)
    assert not (home / "store.sqlite").exists()


@pytest.mark.parametrize("name", ["", "store.sqlite"])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_one_that_others_can_write_is_refused_until_its_user_says_so(home, name, mode):
    (home / name).chmod(mode)
    with pytest.raises(StoreError, match=rf"writable by its user alone.* has mode {mode:o}.*chmod -R go-w .*store"):
        Store(home, write=True)
    assert read(home) == ["theirs"]
    (home / name).chmod(mode & ~0o022)
    Store(home, write=True).close()


@pytest.mark.parametrize("name", ["store.sqlite", "scratch", "programs", "controller.lock"])
def test_links_in_the_place_of_its_files_are_refused(home, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (home / name).unlink(missing_ok=True)
    (home / name).symlink_to(victim)
    with pytest.raises(StoreError, match=rf"{name} must be the store's own.*a link to .*victim"):
        Store(home, write=True)
    assert victim.read_text() == "precious"


def test_checkpoints_and_logs_may_be_links_to_a_larger_disk_and_so_may_the_store(home, tmp_path):
    for name in ("checkpoints", "logs"):
        (tmp_path / name).mkdir()
        (home / name).symlink_to(tmp_path / name)
    (tmp_path / "link").symlink_to(home)
    Store(tmp_path / "link", write=True).close()


def test_a_folder_is_made_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_private(tmp_path / "store")
        Store(tmp_path / "store", write=True).close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "store").iterdir()}
    assert modes == {"store.sqlite": 0o600, "store.sqlite.last": 0o600, "acknowledged": 0o600}
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_where_a_disk_shows_other_owners_what_it_shows_of_this_user_counts(home, monkeypatch):
    """As with mapped users: this process is told one number, and the disk shows another for all that it makes."""
    monkeypatch.setattr(ownership.os, "geteuid", lambda: OTHER)
    check_private(home)


@as_root
def test_another_users_file_beside_the_database_is_refused(home):
    """A log that another user left there would be read as what was committed last."""
    (home / "store.sqlite-wal").write_bytes(b"")
    give(home / "store.sqlite-wal")
    with pytest.raises(StoreError, match="must belong to the user"):
        Store(home, write=True)
