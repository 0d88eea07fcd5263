"""A store is followed through everything that may happen to it, and pages are told in order."""

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from dovetail.store import ControllerLock, Store
from dovetail.store.schema import MIGRATIONS
from dovetail.vocabulary import DovetailError, read_event
from dovetail.web import follower as module
from dovetail.web.follower import StoreFollower
from tests.web.synthetic import START, fill_many, fill_sweep, make_task


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store(tmp_path / "store", write=True) as store:
        fill_sweep(store)
    return tmp_path / "store"


@pytest.fixture
def follower(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REOPEN_SECONDS", 0.0)
    made = StoreFollower(home)
    made.look()
    yield made
    made.close()


def told(follower: StoreFollower, mark: str):
    found = follower.since(mark)
    return None if found is None else [json.loads(change.text) for change in found]


def whole(follower: StoreFollower):
    return json.loads(gzip.decompress(follower.snapshot()))


def test_a_snapshot_and_what_follows_it_are_all(home: Path, follower: StoreFollower):
    found = whole(follower)
    assert (len(found["tasks"]), found["trouble"], found["controller"]) == (12, "", None)
    assert told(follower, found["mark"]) == []
    with Store(home, write=True) as store:
        identity = store.tasks()[11][1].identity
        store.add(events=[read_event("paused", task=identity, at_seconds=START + 900)])
    follower.look()
    (change,) = told(follower, found["mark"])
    assert [(row["id"], row["status"]) for row in change["tasks"]] == [(identity, "paused")]
    assert "incidents" not in change, "what is as before is not sent again"
    assert told(follower, change["mark"]) == []
    assert next(row for row in whole(follower)["tasks"] if row["id"] == identity)["status"] == "paused"


def test_nothing_new_is_nothing_told(follower: StoreFollower):
    mark = whole(follower)["mark"]
    for _ in range(3):
        follower.look()
    assert whole(follower)["mark"] == mark


def test_who_was_away_for_too_long_begins_anew(home: Path, follower: StoreFollower, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_CHANGES", 5)
    mark = whole(follower)["mark"]
    with Store(home, write=True) as store:
        for number in range(9):
            store.add(tasks=[("w", make_task(f"new-{number}"))])
            follower.look()
    assert told(follower, mark) is None
    assert len(follower.changes) == 5
    for strange in ("", "elsewhere.3", f"{follower.generation}.999", f"{follower.generation}.x"):
        assert told(follower, strange) is None


def test_a_store_that_vanishes_and_comes_again_is_said_and_read(home: Path, follower: StoreFollower, tmp_path: Path):
    before = whole(follower)["mark"]
    shutil.move(home, tmp_path / "aside")
    follower.look()
    assert "is gone" in follower.trouble or "found none" in follower.trouble
    assert len(whole(follower)["tasks"]) == 12, "what was read stays in sight"
    with pytest.raises(DovetailError):
        follower.store.points("a")
    with Store(home, write=True) as store:
        fill_many(store, count=3)
    follower.look()
    assert (follower.trouble, len(whole(follower)["tasks"])) == ("", 3)
    assert told(follower, before) is None


def test_a_store_that_is_not_there_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REOPEN_SECONDS", 0.0)
    follower = StoreFollower(tmp_path / "later")
    follower.look()
    assert "found none" in whole(follower)["trouble"]
    with Store(tmp_path / "later", write=True) as store:
        fill_many(store, count=2)
    follower.look()
    assert len(whole(follower)["tasks"]) == 2
    follower.close()


def test_a_store_of_a_newer_version_is_said(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REOPEN_SECONDS", 0.0)
    connection = sqlite3.connect(home / "store.sqlite")
    connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    connection.close()
    follower = StoreFollower(home)
    follower.look()
    assert "written by a newer Dovetail" in follower.trouble
    connection = sqlite3.connect(home / "store.sqlite")
    connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
    connection.close()
    follower.look()
    assert follower.trouble == ""
    follower.close()


def test_a_damaged_store_is_said(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REOPEN_SECONDS", 0.0)
    path = home / "store.sqlite"
    good = path.read_bytes()
    path.write_bytes(good[:2000] + b"\x00" * 3000 + good[5000:])
    follower = StoreFollower(home)
    follower.look()
    assert follower.trouble
    path.write_bytes(good)
    follower.look()
    assert follower.trouble == ""
    follower.close()


def test_a_controller_is_seen_and_missed(home: Path, follower: StoreFollower):
    with ControllerLock(home, note={"socket": "x"}):
        follower.look()
        assert whole(follower)["controller"]["listens"] is True
    follower.look()
    assert whole(follower)["controller"] is None


def test_points_of_thousands_are_looked_at_little_by_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SLICE_SECONDS", 0.0)
    with Store(tmp_path / "many", write=True) as store:
        fill_many(store, count=60)
    follower = StoreFollower(tmp_path / "many")
    follower.look()
    assert follower.is_behind
    monkeypatch.setattr(module, "SLICE_SECONDS", 60.0)
    follower.look()
    assert not follower.is_behind
    assert all(row["metrics"]["loss"][1] is not None for row in whole(follower)["tasks"])
    follower.close()


def test_a_long_store_is_shown_as_far_as_it_was_read(
    home: Path, follower: StoreFollower, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "READ_SECONDS", 0.0)
    monkeypatch.setattr(module, "ROWS", 7)
    other = StoreFollower(home)
    other.look()
    part = whole(other)
    assert 0 < part["reading"] < 1
    assert other.is_behind
    assert len(part["tasks"]) == 12, "tasks are known before what became of them"
    shares = [part["reading"]]
    while other.is_behind:
        other.look()
        shares.append(whole(other)["reading"])
    assert shares[:-1] == sorted(shares[:-1])
    assert shares[-1] is None
    apart = {"mark"}
    assert {k: v for k, v in whole(other).items() if k not in apart} == {
        k: v for k, v in whole(follower).items() if k not in apart
    }
    heard = json.loads("{}") | part
    for change in told(other, part["mark"]):
        rows = {row["id"]: row for row in heard["tasks"]} | {row["id"]: row for row in change["tasks"]}
        heard |= change | {"tasks": list(rows.values())}
    assert heard == whole(other), "who has seen a part has heard the rest"
    other.close()
