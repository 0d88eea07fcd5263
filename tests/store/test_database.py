import contextlib
import resource
import shutil
import sqlite3
import subprocess
import sys

import pytest

from dovetail.store import Point, Store, checksums
from dovetail.store.database import _insert
from dovetail.store.schema import MIGRATIONS, READABLE
from dovetail.testing.stores import StoreConformance
from dovetail.vocabulary import Plan, Profile, Program, Stop, StoreError, StoreRefused, Task, dumps, read_event


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
        if version < READABLE:
            told = "'dovetail run' brings it up to date" if version else "just being made"
            with pytest.raises(StoreError, match=told):
                Store(home)
        else:
            Store(home).close()
        with Store(home, write=True) as store:
            store.add(events=[read_event("warned", at_seconds=0.0)])
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
from dovetail.store import Point, Store, checksums
from dovetail.vocabulary import read_event, StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path(sys.argv[1]), write=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
kept = 0
try:
    while True:
        store.add(events=[read_event("warned", at_seconds=float(kept), data={"message": "x" * 5000})])
        kept += 1
except StoreError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.add(events=[read_event("warned", at_seconds=-1.0)])
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


def test_of_many_plans_the_first_and_the_last_are_kept_whole(tmp_path):
    plans = [Plan(explanation=(f"plan {number}",)) for number in range(20)]
    with Store(tmp_path, write=True) as store:
        for number, plan in enumerate(plans):
            store.add_plan(plan, workload="w", at_seconds=float(number))
            store.add_plan(plan, workload="another", at_seconds=0.0)
        found = store.plans(workload="w")
    assert [at for _, at, _ in found] == [float(number) for number in range(20)]
    assert [plan for _, _, plan in found] == [plans[0], *[Plan()] * 11, *plans[-8:]]
    with Store(tmp_path, write=True) as store:
        assert not store.fell_back


# What the file falls back to


def told(home, *messages):
    with Store(home, write=True) as store:
        store.add(events=[read_event("warned", at_seconds=0.0, data={"message": each}) for each in messages])


def messages(store):
    return [event.message for _, event in store.events()]


def spoil(home):
    """Alter a row behind the store's back, as a disk would."""
    connection = sqlite3.connect(home / "store.sqlite")
    connection.execute("UPDATE events SET data = replace(data, 'first', 'fjrst')")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("has_copy", [True, False])
def test_readers_are_promised_a_copy_only_where_there_is_one(tmp_path, has_copy):
    told(tmp_path, "first")
    Store(tmp_path, write=True).close()
    spoil(tmp_path)
    if not has_copy:
        (tmp_path / checksums.COPY).unlink()
    cure = "'dovetail run' falls back to the last copy" if has_copy else "No whole copy of it is beside it"
    with pytest.raises(StoreError, match=cure), Store(tmp_path) as store:
        messages(store)


def test_a_zero_with_a_sign_is_a_zero(tmp_path):
    with Store(tmp_path, write=True) as store:
        store.add(points=[Point(task="a", name="loss", step=1, value=-0.0, at_seconds=0.0)])
    with Store(tmp_path, write=True) as store:
        assert not store.fell_back
        assert [point.value for point in store.points("a")] == [0.0]


def test_a_zero_whose_sign_an_older_dovetail_sealed_is_no_damage(tmp_path):
    Store(tmp_path, write=True).close()
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    row = ("a", "loss", 1, -0.0, 0.5)
    connection.execute("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)", (*row, checksums.checksum(*row)))
    connection.commit()
    connection.close()
    with Store(tmp_path, write=True) as store:
        assert not store.fell_back
        assert [point.value for point in store.points("a")] == [0.0]


def test_what_rots_while_it_is_open_does_not_reach_the_copy(tmp_path):
    told(tmp_path, "first")
    with Store(tmp_path, write=True):
        spoil(tmp_path)
    with Store(tmp_path, write=True) as store:
        assert "does not match its checksum" in store.fell_back
        assert messages(store) == ["first"]


def killed(path, content):
    raise KeyboardInterrupt


def test_a_fall_back_that_is_killed_is_made_again(tmp_path, monkeypatch):
    told(tmp_path, "first")
    spoil(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            Store(tmp_path, write=True)
    with Store(tmp_path, write=True) as store:
        assert store.fell_back
        assert messages(store) == ["first"]


def test_a_file_that_is_gone_is_not_begun_anew(tmp_path):
    told(tmp_path, "first")
    (tmp_path / "store.sqlite").unlink()
    with Store(tmp_path, write=True) as store:
        assert store.fell_back == "store.sqlite is missing"
        assert messages(store) == ["first"]


def test_gangs_of_two_sizes_are_two_profiles_and_a_later_one_replaces_its_own(tmp_path):
    def gang(members, seconds):
        where = {"family": "f", "kind": "cpu", "count": 1, "technique": "fuse", "peak_bytes": 0}
        return Profile(step_seconds=seconds, knobs={"members": members}, **where)

    with Store(tmp_path, write=True) as store:
        store.add(profiles=[gang(4, 1.0), gang(8, 2.0)])
        store.add(profiles=[gang(4, 3.0)])
        assert {each.knobs["members"]: each.step_seconds for each in store.profiles()} == {4: 3.0, 8: 2.0}


def test_what_is_on_record_and_cannot_be_read_is_one_tasks_failure(tmp_path):
    """As an earlier version may have acknowledged it."""
    good = Task(name="good", program=Program(reference="a.py:f"), stop=Stop(steps=1))
    with Store(tmp_path, write=True) as store:
        store.add(tasks=[("w", good)], events=[read_event("described", task=good.identity, at_seconds=0.0)])
        steps = dumps(good).replace('"steps":1', f'"steps":{10**400}').replace("good", "bad")
        deep = dumps(good).replace('"parameters":{}', '"parameters":{"x":%s}' % ("[" * 5000 + "]" * 5000))
        for identity, name, record in (("a" * 16, "bad", steps), ("b" * 16, "deep", deep)):
            store._connection.execute(_insert("tasks"), store._seal(identity, "w", name, record))
        event = store._seal("saved", "a" * 16, 1, 0.0, '{"step": "many"}')
        store._connection.execute(_insert("events"), event)
    with Store(tmp_path) as store:
        assert [task.name for _, task in store.tasks()] == ["good", "bad", "deep"]
        assert [task.identity for _, task in store.tasks()][1:] == ["a" * 16, "b" * 16]
        assert store.unreadable.keys() == {"a" * 16, "b" * 16}
        assert "steps must be at most" in store.unreadable["a" * 16]
        (_, described), (_, failed) = store.events()
        assert (described.kind, failed.kind, failed.task) == ("described", "failed", "a" * 16)
        assert "cannot be read: CheckpointSaved.step must be of type int" in failed.reason


def test_a_full_disk_is_told_apart_and_leaves_a_store_that_takes_more_later(tmp_path):
    with Store(tmp_path, write=True) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count={pages}")
        many = [read_event("warned", at_seconds=0.0, data={"message": "x" * 1000})] * 100
        for _ in range(2):
            with pytest.raises(StoreRefused, match=r"must accept writes; found: database or disk is full\. Free some"):
                store.add(events=many)
        store._connection.execute("PRAGMA max_page_count=1000000")
        store.add(events=many)
        assert len(list(store.events())) == 100


# A file whose schema, path or rows are not as they should be


def full(home):
    """A store with a row in each table, closed; gives what is in it."""
    with Store(home, write=True) as store:
        store.add(
            tasks=[("w", TASK)],
            events=[read_event("warned", at_seconds=0.5, data={"message": "first"})],
            points=[Point(task=TASK.identity, name="loss", step=1, value=0.5, at_seconds=0.5)],
            profiles=[Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=7)],
            hardware=[("note", TASK)],
        )
        store.add_plan(Plan(), workload="w", at_seconds=0.5)
        return contents(store)


def contents(store):
    tasks, events = store.tasks(), list(store.events())
    return [tasks, events, store.points(TASK.identity), store.profiles(), store.plans(), store.hardware("note", Task)]


TASK = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=3))


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_the_schema_is_told_and_fallen_back_from(tmp_path, bit):
    home = tmp_path / "store"
    before = full(home)
    shutil.copytree(home, tmp_path / "kept")
    connection = sqlite3.connect(home / "store.sqlite")
    texts = [text.encode() for (text,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    connection.close()
    whole = (home / "store.sqlite").read_bytes()
    places = [whole.index(text) + at for text in texts for at in range(bit * 9, len(text), 72)]
    for place in places:
        (home / "store.sqlite").write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        with contextlib.suppress(StoreError), Store(home) as store:
            assert contents(store) == before
        with Store(home, write=True) as store:
            assert contents(store) == before
            store.add(events=[read_event("warned", at_seconds=0.0, data={"message": "and on"})])
            store.add_plan(Plan(), workload="w", at_seconds=0.5)
        shutil.rmtree(home)
        shutil.copytree(tmp_path / "kept", home)


@pytest.mark.parametrize("change", [(b"INTEGER", b"INTEGDR"), (b"kind TEXT", b"kind TEXU"), (b"number I", b"oumber I")])
def test_no_reader_is_shown_less_because_of_a_flipped_bit_that_sqlite_takes_for_another_type(tmp_path, change):
    before = full(tmp_path)
    content = (tmp_path / "store.sqlite").read_bytes()
    at = content.index(change[0], content.index(b"CREATE TABLE events"))
    (tmp_path / "store.sqlite").write_bytes(content[:at] + change[1] + content[at + len(change[0]) :])
    with pytest.raises(StoreError, match=r"must be as it was written; found: .* 'dovetail run' falls back"):
        Store(tmp_path)
    with Store(tmp_path, write=True) as store:
        assert store.fell_back
        assert contents(store) == before


@pytest.mark.parametrize("name", ["a#b", "a%20b", "a?mode=memory", "a b", "ä"])
def test_the_copy_is_found_under_any_path(tmp_path, name):
    told(tmp_path / name, "first")
    spoil(tmp_path / name)
    with Store(tmp_path / name, write=True) as store:
        assert "does not match its checksum" in store.fell_back
        assert messages(store) == ["first"]


@pytest.mark.parametrize("table", sorted(checksums.COLUMNS))
def test_a_row_without_a_checksum_is_not_believed(tmp_path, table):
    before = full(tmp_path)
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    connection.execute(f"UPDATE {table} SET checksum = NULL")
    connection.commit()
    connection.close()
    with Store(tmp_path) as store, pytest.raises(StoreError, match=f"a row of its table {table} does not match"):
        contents(store)
    with Store(tmp_path, write=True) as store:
        assert store.fell_back == f"row 1 of its table {table} does not match its checksum"
        assert contents(store) == before


def test_rows_of_an_older_version_without_one_are_read_and_given_one(tmp_path):
    before = full(tmp_path)
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    for table in checksums.COLUMNS:
        connection.execute(f"UPDATE {table} SET checksum = NULL")
    connection.execute("PRAGMA user_version=3")
    connection.commit()
    connection.close()
    for write in (False, True, False):
        with Store(tmp_path, write=write) as store:
            assert contents(store) == before
            assert not store.fell_back
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    assert all(
        connection.execute(f"SELECT count(*) FROM {table} WHERE checksum IS NULL").fetchone() == (0,)
        for table in checksums.COLUMNS
    )
    connection.close()
