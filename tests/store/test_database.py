import resource
import sqlite3
import subprocess
import sys

import pytest

from dovetail.store import Store
from dovetail.store.schema import MIGRATIONS
from dovetail.testing.stores import StoreConformance
from dovetail.vocabulary import Event, StoreError


class TestStore(StoreConformance):
    pass


def version_of(home):
    connection = sqlite3.connect(home / "store.sqlite")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return version


def set_version(home, version):
    connection = sqlite3.connect(home / "store.sqlite")
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()


def test_a_new_store_is_of_the_newest_version_and_private(tmp_path):
    Store(tmp_path / "store", write=True).close()
    assert version_of(tmp_path / "store") == len(MIGRATIONS)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "store/store.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("write", [True, False])
def test_a_store_from_a_newer_dovetail_is_refused(tmp_path, write):
    Store(tmp_path, write=True).close()
    set_version(tmp_path, len(MIGRATIONS) + 1)
    with pytest.raises(StoreError, match=r"must be of version \d+ or older.*Upgrade Dovetail"):
        Store(tmp_path, write=write)


def test_every_older_version_is_brought_up_to_date(tmp_path):
    for version in range(len(MIGRATIONS)):
        home = tmp_path / str(version)
        home.mkdir()
        connection = sqlite3.connect(home / "store.sqlite")
        for number in range(version):
            connection.executescript(MIGRATIONS[number])
        connection.execute(f"PRAGMA user_version={version}")
        connection.close()
        with pytest.raises(StoreError, match="'dovetail run' brings it up to date"):
            Store(home)
        with Store(home, write=True) as store:
            store.add(events=[Event(kind="warned", at_seconds=0.0)])
        assert version_of(home) == len(MIGRATIONS)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "store.sqlite").write_bytes(b"not a database at all, and long enough to look at" * 100)
    with pytest.raises(StoreError, match="found: file is not a database"):
        Store(tmp_path, write=True)


def test_a_place_that_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="must be a directory that this user can write"):
        Store(tmp_path / "file", write=True)


FILL = """
import resource, signal, sys
from pathlib import Path
from dovetail.store import Store
from dovetail.vocabulary import Event, StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path(sys.argv[1]), write=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
kept = 0
try:
    while True:
        store.add(events=[Event(kind="warned", at_seconds=float(kept), data={"message": "x" * 5000})])
        kept += 1
except StoreError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.add(events=[Event(kind="warned", at_seconds=-1.0)])
print(kept)
"""


def test_a_full_disk_is_told_and_what_was_acknowledged_is_safe(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    found = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True)
    message, kept = found.stdout.splitlines()
    assert "must accept writes" in message
    assert "Free some disk space" in message
    with Store(tmp_path) as store:
        at = [event.at_seconds for _, event in store.events()]
    assert at == [*map(float, range(int(kept))), -1.0]
