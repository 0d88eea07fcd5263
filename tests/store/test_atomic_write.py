"""One writer for all files: whole or not at all, private, through nobody's links, and side by side with others."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from dovetail.store import folder_beside, write_atomically
from dovetail.store.atomic_write import replace
from tests.faults.other_user import OTHER, as_root


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_is_private_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "page"
    path.write_text("old")
    path.chmod(0o644)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["page"]


def test_links_under_every_name_that_could_be_guessed_lead_nowhere(tmp_path):
    """As planted for the version before, whose temporary file had a name that hung on the path alone."""
    import hashlib

    victim = tmp_path / "victim"
    victim.write_text("precious")
    shared = tmp_path / "shared"
    shared.mkdir()
    digest = hashlib.sha256(b"page").hexdigest()[:12]
    for name in (f".{digest}.part", ".page.part", f".{digest}-.part", f".{digest}-x.part"):
        (shared / name).symlink_to(victim)
    (shared / f".{digest}-folder.part").symlink_to(tmp_path)
    write_atomically(shared / "page", b"new")
    assert victim.read_text() == "precious"
    assert not (shared / "page").is_symlink()
    assert (shared / "page").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["folder", "symbolic link", "pipe"])
def test_what_is_no_regular_file_is_refused_and_left_as_it_was(tmp_path, kind):
    path, target = tmp_path / "out", tmp_path / "target"
    target.write_text("precious")
    {"folder": path.mkdir, "symbolic link": lambda: path.symlink_to(target), "pipe": lambda: os.mkfifo(path)}[kind]()
    before = path.lstat()
    with pytest.raises(OSError, match=f"must be a regular file, or not there yet; it is a {kind}"):
        write_atomically(path, b"new")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert target.read_text() == "precious"
    assert names(tmp_path) == ["out", "target"]


@as_root
def test_a_device_is_refused(tmp_path):
    try:
        os.mknod(tmp_path / "null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")
    with pytest.raises(OSError, match="it is a device"):
        write_atomically(tmp_path / "null", b"new")


def test_two_writers_of_one_path_do_not_meet(tmp_path):
    path = tmp_path / "page"
    with folder_beside(path) as one, folder_beside(path) as other:
        (one / "content").write_bytes(b"one")
        (other / "content").write_bytes(b"other")
        write_atomically(path, b"a third")
        assert path.read_bytes() == b"a third"
        replace(one / "content", path)
        assert path.read_bytes() == b"one"
        replace(other / "content", path)
    assert path.read_bytes() == b"other"
    assert names(tmp_path) == ["page"]


def test_many_writers_at_once_leave_one_whole_file(tmp_path):
    path, contents = tmp_path / "page", [bytes([number]) * 100_000 for number in range(8)]
    write_atomically(path, contents[0])
    threads = [
        threading.Thread(target=lambda each=each: [write_atomically(path, each) for _ in range(5)]) for each in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in contents
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["page"]


KILLED = """
import os, signal, sys
from pathlib import Path
from dovetail.store import folder_beside
with folder_beside(Path(sys.argv[1])) as folder:
    (folder / "content").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_of_the_same_path(tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path / "page")]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    write_atomically(tmp_path / "another", b"x")
    assert len(names(tmp_path)) == 2
    write_atomically(tmp_path / "page", b"x")
    assert names(tmp_path) == ["another", "page"]


@as_root
def test_what_another_user_put_there_is_not_touched(tmp_path):
    with folder_beside(tmp_path / "page") as folder:
        planted = folder.with_name(f"{folder.name.partition('-')[0]}-planted.part")
    planted.mkdir()
    (planted / "file").write_text("theirs")
    os.chown(planted, OTHER, OTHER)
    write_atomically(tmp_path / "page", b"x")
    assert (planted / "file").exists()
