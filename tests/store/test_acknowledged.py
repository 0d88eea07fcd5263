"""After a kill, what a log that is gone, cut or altered took away is named to readers and writers until it was told."""

import os
import random
import shutil
import signal
import subprocess
import sys

import pytest

from dovetail.store import Store
from dovetail.store.acknowledged import FILE, read_count
from dovetail.vocabulary import Program, Stop, StoreError, Task, read_event

KILLED = """
import os, signal, sys
from pathlib import Path
from dovetail.store import Store
from tests.store.test_acknowledged import submit
store = Store(Path(sys.argv[1]), write=True)
for number in range(5):
    submit(store, f"task {number}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def task(name):
    return Task(name=name, program=Program(reference="a.py:f"), stop=Stop(steps=9))


def submit(store, name):
    """As a daemon takes a task on."""
    event = read_event("submitted", task=task(name).identity, at_seconds=0.0, data={"priority": 1.0})
    store.add(tasks=[("w", task(name))], events=[event])


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A store whose writer was killed after it had acknowledged two tasks at first and five later."""
    home = tmp_path_factory.mktemp("killed") / "store"
    with Store(home, write=True) as store:
        submit(store, "first")
        submit(store, "second")
    found = subprocess.run([sys.executable, "-c", KILLED, str(home)], check=False, cwd=os.getcwd())
    assert found.returncode == -signal.SIGKILL
    return home


@pytest.fixture
def home(killed, tmp_path):
    shutil.copytree(killed, tmp_path / "store")
    return tmp_path / "store"


def names(store):
    return [each.name for _, each in store.tasks()]


ALL = ["first", "second", *(f"task {number}" for number in range(5))]


def test_a_whole_log_has_everything_and_nothing_is_said(home):
    with Store(home) as store:
        assert names(store) == ALL
    with Store(home, write=True) as store:
        assert not store.missing
        assert names(store) == ALL


def test_a_log_that_is_gone_is_named_until_something_was_added(home):
    (home / "store.sqlite-wal").unlink()
    said = (
        "5 events after event 2 and 5 tasks (task 0, task 1, task 2, task 3, task 4) that were acknowledged are missing"
    )
    with pytest.raises(StoreError) as refused:
        Store(home)
    assert said in str(refused.value)
    for _ in range(2):  # killed before it told anybody, say
        with Store(home, write=True) as store:
            assert store.missing == said
            assert names(store) == ["first", "second"]
    with Store(home, write=True) as store:
        submit(store, "task 3")
    with Store(home, write=True) as store:
        assert not store.missing
        assert names(store) == ["first", "second", "task 3"]
    with Store(home) as store:
        assert names(store) == ["first", "second", "task 3"]


def test_a_new_store_whose_log_is_gone_is_not_taken_for_one_that_is_just_being_made(tmp_path):
    home = tmp_path / "store"
    subprocess.run([sys.executable, "-c", KILLED, str(home)], check=False, cwd=os.getcwd())
    (home / "store.sqlite-wal").unlink()
    with pytest.raises(StoreError, match="5 events after event 0 and 5 tasks"):
        Store(home)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.9])
def test_a_log_that_was_cut_is_named(home, part):
    log = home / "store.sqlite-wal"
    os.truncate(log, int(part * log.stat().st_size))
    with Store(home, write=True) as store:
        left = names(store)
        assert left == ALL[: len(left)]
        assert len(left) < 7
        assert all(name in store.missing for name in ALL[len(left) :])
        assert f"{7 - len(left)} events after event {len(left)} and {7 - len(left)} tasks" in store.missing


@pytest.mark.parametrize("seed", range(30))
def test_no_flipped_bit_of_the_log_takes_a_task_away_without_a_word(home, seed):
    log, chance = home / "store.sqlite-wal", random.Random(seed)
    content = bytearray(log.read_bytes())
    bit = chance.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    log.write_bytes(content)
    with Store(home, write=True) as store:
        left = names(store)
        assert bool(store.missing or store.fell_back) >= (left != ALL)
        assert all(name in store.missing for name in ALL if name not in left)


def test_an_older_file_in_the_place_of_the_database_is_named(home):
    with Store(home, write=True):
        pass
    shutil.copyfile(home / "store.sqlite.last", home.parent / "older")
    with Store(home, write=True) as store:
        submit(store, "newest")
    shutil.copyfile(home.parent / "older", home / "store.sqlite")
    with Store(home, write=True) as store:
        assert store.missing == "1 events after event 7 and 1 tasks (newest) that were acknowledged are missing"


@pytest.mark.parametrize("content", [b"", b"9 9 9 9", b"\xff" * 200, b"99 99 100 00000000".ljust(100)])
def test_a_count_that_is_damaged_says_nothing_and_is_made_anew(home, content):
    (home / FILE).write_bytes(content)
    assert read_count(home) is None
    with Store(home, write=True) as store:
        assert not store.missing
        assert names(store) == ALL
    assert read_count(home).tasks == 7


def test_many_tasks_are_named_in_part_and_counted_in_full(tmp_path):
    with Store(tmp_path, write=True) as store:
        shutil.copyfile(tmp_path / "store.sqlite.last", tmp_path / "empty")
        store.add(tasks=[("w", task(f"task {number}")) for number in range(50)])
    shutil.copyfile(tmp_path / "empty", tmp_path / "store.sqlite")
    with Store(tmp_path, write=True) as store:
        assert store.missing.startswith("50 tasks (task 0, task 1, ")
        assert "task 19 and 30 more)" in store.missing


def test_tasks_that_could_not_be_committed_are_not_counted(tmp_path, monkeypatch):
    with Store(tmp_path, write=True) as store:
        submit(store, "first")
        with monkeypatch.context() as patch:

            def full(*_):
                raise OSError("No space left on device")

            patch.setattr(os, "pwrite", full)
            with pytest.raises(StoreError, match="must accept writes; found: No space left on device"):
                submit(store, "second")
        assert names(store) == ["first"]
        submit(store, "third")
        assert names(store) == ["first", "third"]
    assert set(read_count(tmp_path).came.values()) == {"first", "third"}
    with Store(tmp_path, write=True) as store:
        assert not store.missing
