import os
import signal
import subprocess
import sys

import pytest

from dovetail.store import ControllerLock, holder
from dovetail.vocabulary import StoreBusy

HOLD = """
import sys, time
from pathlib import Path
from dovetail.store import ControllerLock
lock = ControllerLock(Path(sys.argv[1]), note={"socket": "there"})
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_what_is_no_file_of_its_own_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "controller.lock")
    assert holder(tmp_path) is None
    (tmp_path / "controller.lock").unlink()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "controller.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        ControllerLock(tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_second_process_is_refused_and_told_which_holds_it(tmp_path, other):
    with pytest.raises(StoreBusy, match=f"held by process {other.pid}"):
        ControllerLock(tmp_path)
    assert holder(tmp_path) == {"process": other.pid, "socket": "there"}


def test_a_killed_holder_holds_no_more(tmp_path, other):
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert holder(tmp_path) is None
    with ControllerLock(tmp_path):
        assert holder(tmp_path)["process"] == os.getpid()


def test_released_and_taken_again(tmp_path):
    lock = ControllerLock(tmp_path)
    with pytest.raises(StoreBusy):
        ControllerLock(tmp_path)
    lock.release()
    lock.release()
    assert holder(tmp_path) is None
    ControllerLock(tmp_path).release()


def test_nobody_holds_what_is_not_there(tmp_path):
    assert holder(tmp_path / "nowhere") is None


ASK = """
import sys
from pathlib import Path
from dovetail.store import holder
print("asking", flush=True)
while True:
    holder(Path(sys.argv[1]))
"""


def test_asking_who_holds_it_keeps_nobody_out(tmp_path):
    ControllerLock(tmp_path).release()
    with subprocess.Popen([sys.executable, "-c", ASK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as asking:
        asking.stdout.readline()
        try:
            for _ in range(2000):
                ControllerLock(tmp_path).release()
        finally:
            asking.kill()
