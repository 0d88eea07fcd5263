"""Commands through the socket of a store's controller, with a real socket and a real lock."""

import contextlib
import os
import stat
import threading
from pathlib import Path

import pytest

from dovetail.control import CommandServer, ask
from dovetail.control.commands import ask_socket
from dovetail.store import ControllerLock
from dovetail.vocabulary import StoreError


@pytest.fixture
def server():
    with contextlib.closing(CommandServer(lambda request: {"heard": request, "from": os.getpid()})) as opened:
        yield opened


def test_a_request_is_answered(server):
    assert ask_socket(server.path, {"do": "stop", "reason": "ü"})["heard"] == {"do": "stop", "reason": "ü"}


def test_many_may_ask_at_once(server):
    answers = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: ask_socket(server.path, {"n": n})["heard"]["n"]}))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: n for n in range(20)}


def test_what_is_not_json_does_not_end_the_server(server):
    import socket

    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(server.path)
        channel.sendall(b"hello\n")
        assert channel.recv(100) == b""
    assert ask_socket(server.path, {"n": 1})["heard"] == {"n": 1}


def test_only_this_user_can_reach_it(server):
    assert stat.S_IMODE(Path(server.path).parent.stat().st_mode) == 0o700


def test_closing_removes_every_trace():
    server = CommandServer(lambda request: {})
    folder = Path(server.path).parent
    server.close()
    assert not folder.exists()


def test_the_controller_of_a_store_is_found_through_its_lock(tmp_path, server):
    with ControllerLock(tmp_path, note={"socket": server.path}):
        assert ask(tmp_path, {"do": "status"})["from"] == os.getpid()


def test_a_store_far_down_can_be_reached_too(tmp_path, server):
    # A socket's own path may have 107 characters; a store's may have thousands.
    home = tmp_path / ("d" * 120) / ("e" * 120)
    home.mkdir(parents=True)
    with ControllerLock(home, note={"socket": server.path}):
        assert "heard" in ask(home, {"do": "status"})


def test_without_a_controller_the_answer_says_how_to_start_one(tmp_path):
    with pytest.raises(StoreError, match=r"a controller must be running on .*; none is\. Start one: dovetail run\."):
        ask(tmp_path, {"do": "stop"})


def test_a_store_that_is_not_there_has_no_controller(tmp_path):
    with pytest.raises(StoreError, match="none is"):
        ask(tmp_path / "nothing", {"do": "stop"})


def test_a_controller_that_does_not_answer_is_named(tmp_path):
    with (
        ControllerLock(tmp_path, note={"socket": str(tmp_path / "gone")}),
        pytest.raises(StoreError, match=rf"process {os.getpid()}, must answer; found: .*No such file"),
    ):
        ask(tmp_path, {"do": "stop"})
