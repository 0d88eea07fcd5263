"""Files and checkpoints where fsspec reaches: its own `file://`, which does nothing that others do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.store import RemoteFolder, check_fence, checkpoints_of, folder_of, raise_fence, settle_checkpoints
from dovetail.vocabulary import CheckpointError, StoreError


@pytest.fixture
def folder(tmp_path):
    return RemoteFolder(f"file://{tmp_path}/there")


def test_what_is_written_is_there_until_it_is_removed(folder):
    assert folder.names() == []
    (folder / "a").write("one", b"1")
    folder.write("two", b"22")
    folder.write("two", b"333")
    assert folder.names() == ["a", "two"]
    assert folder.read("two") == b"333"
    assert (folder.has("two"), folder.has("three"), folder.has("a")) == (True, False, False)
    assert folder.files() == ["a/one", "two"]
    folder.remove("two")
    (folder / "a").remove()
    assert folder.names() == []


@pytest.mark.parametrize("place", ["s3://b/c", "gs://b", "sftp://host/x", "FILE:///x"])
def test_urls_are_elsewhere(place):
    assert folder_of(place) == RemoteFolder(place)


@pytest.mark.parametrize("place", ["/a/b", "a", "C:x", Path("a")])
def test_paths_are_paths(place):
    assert folder_of(place) == Path(place)


def test_a_stale_attempt_finds_the_fence_elsewhere_too(folder):
    check_fence(folder, 1)
    raise_fence(folder, 2)
    check_fence(folder, 2)
    with pytest.raises(CheckpointError, match="newest attempt, 2; this is attempt 1"):
        check_fence(folder, 1)


# Where the checkpoints of a store are


def test_they_are_beside_the_store_unless_told_otherwise(tmp_path):
    assert settle_checkpoints(tmp_path, None) == tmp_path / "checkpoints" == checkpoints_of(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_told_once_they_stay_there(tmp_path, scheme):
    home, wanted = tmp_path / "home", f"{scheme}{tmp_path}/there"
    home.mkdir()
    assert str(settle_checkpoints(home, wanted)) == wanted
    assert settle_checkpoints(home, None) == settle_checkpoints(home, wanted) == checkpoints_of(home)
    assert not list((tmp_path / "there").iterdir())
    with pytest.raises(StoreError, match=r"must stay in one place; those of .* are at .*there, not at .*elsewhere"):
        settle_checkpoints(home, f"{tmp_path}/elsewhere")


def test_a_store_that_has_some_keeps_them(tmp_path):
    (tmp_path / "checkpoints" / "task").mkdir(parents=True)
    with pytest.raises(StoreError, match="must stay in one place"):
        settle_checkpoints(tmp_path, f"file://{tmp_path}/there")


REFUSED = {
    "nope://x": r"must be reached by fsspec; found: Protocol not known: nope\. Install the package for nope://",
    "memory://x": "that outlives its processes; got memory://x",
    "simplecache::s3://b/c": "the URL of one file system",
    "sftp://me:hunter2@host/x": "must hold no password",
    "file:///dev/null/x": "checkpoints at file:///dev/null/x must be writable; found:",
    "/dev/null/x": "checkpoints at /dev/null/x must be writable; found:",
}


@pytest.mark.parametrize("place", REFUSED)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path, place):
    with pytest.raises(StoreError, match=REFUSED[place]) as error:
        settle_checkpoints(tmp_path, place)
    assert "hunter2" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named_with_its_command(tmp_path):
    code = f"""
import sys
sys.modules["s3fs"] = None  # as if it were not installed
from pathlib import Path
from dovetail.store import settle_checkpoints
settle_checkpoints(Path({str(tmp_path)!r}), "s3://bucket/folder")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Install s3fs to access S3. Install it: pip install 'dovetail[s3]', or use a path." in done.stderr


def test_fsspec_is_loaded_only_where_it_is_needed():
    code = "import sys, dovetail.control, dovetail.store; sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
