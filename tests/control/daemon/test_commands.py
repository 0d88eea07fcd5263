"""Commands through the socket of a store's controller, with a real socket and a real lock."""

import contextlib
import gc
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dovetail.control import CommandServer, ask
from dovetail.control.daemon import commands
from dovetail.control.daemon.commands import Encoded, ask_server
from dovetail.store import ControllerLock, clear_scratch
from dovetail.vocabulary import InvalidRecord, StoreError
from tests.faults.other_user import OTHER, as_root


@pytest.fixture
def server(tmp_path):
    def answer(request):
        return {"heard": request, "from": os.getpid()}

    with contextlib.closing(CommandServer(answer, home=tmp_path)) as opened:
        yield opened


def test_a_request_is_answered(server):
    assert ask_server(server.note, {"do": "stop", "reason": "ü"})["heard"] == {"do": "stop", "reason": "ü"}


@as_root
def test_the_controller_that_another_users_store_names_is_not_asked(server, tmp_path):
    with ControllerLock(tmp_path, note=server.note):
        assert ask(tmp_path, {"do": "status"})["heard"]
        os.chown(tmp_path, OTHER, OTHER)
        with pytest.raises(StoreError, match="must belong to the user who opens it"):
            ask(tmp_path, {"do": "stop"})


def test_many_may_ask_at_once(server):
    answers = {}
    threads = [
        threading.Thread(
            target=lambda n=n: answers.update({n: ask_server(server.note, {"do": "count", "n": n})["heard"]["n"]})
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: n for n in range(20)}


def said(server, line):
    """What the server says to these bytes."""
    with contextlib.closing(commands._connected(server.note)) as channel:
        channel.sendall(line)
        channel.shutdown(socket.SHUT_WR)
        return json.loads(channel.makefile().readline())["error"]


@pytest.mark.parametrize(
    ("line", "because"),
    [
        (b"hello\n", "a request must be one line of JSON; found: Expecting value"),
        (b"\xff\n", "a request must be one line of JSON"),
        (b"", "a request must be one line of JSON"),
        (b"[" * 100_000 + b"\n", "a request must be one line of JSON"),
        (b"[1]\n", "a request must be an object with a command"),
        (b'{"do": 3}\n', "a request must be an object with a command"),
    ],
)
def test_what_is_no_request_is_answered_so(server, line, because):
    assert because in said(server, line)
    assert ask_server(server.note, {"do": "count", "n": 1})["heard"] == {"do": "count", "n": 1}


def test_a_request_may_have_so_many_bytes(server, monkeypatch):
    monkeypatch.setattr(commands, "LIMIT_BYTES", 1000)
    assert "a request must be at most 1000 B" in said(server, b"x" * 1001)
    with pytest.raises(InvalidRecord, match=r"at most 1000 B; this one is longer\. Send it in parts\."):
        ask_server(server.note, {"do": "x" * 1000})


def test_who_says_nothing_holds_up_nobody(server, monkeypatch):
    monkeypatch.setattr(commands, "LINE_SECONDS", 0.2)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(commands._connected(server.note)) for _ in range(20)]
        assert ask_server(server.note, {"do": "count"})["heard"]
        assert [channel.recv(100) for channel in silent] == [b""] * 20  # heard no longer


def test_so_many_are_heard_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "CLIENTS", 1)
    with contextlib.closing(CommandServer(lambda request: request, home=tmp_path)) as server:
        with contextlib.closing(commands._connected(server.note)) as first:
            first.sendall(b"{")
            assert "at most 1 clients are heard at once" in ask_server(server.note, {"do": "count"})["error"]
            first.sendall(b'"do": "a"}\n')
            assert first.recv(100) == b'{"do": "a"}\n'
        for _ in range(600):  # its thread ends a moment later
            if ask_server(server.note, {"do": "b"}) == {"do": "b"}:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the place was never free again")


@pytest.mark.parametrize("error", [RecursionError("too deep"), MemoryError(), KeyError("do"), OSError("no disk")])
def test_whatever_a_request_raises_is_its_answer(tmp_path, error):
    def answer(request):
        raise error

    with contextlib.closing(CommandServer(answer, home=tmp_path)) as server:
        for _ in range(2):
            told = ask_server(server.note, {"do": "list"})["error"]
            assert told == f"a command must be what 'dovetail' itself would send; carrying it out gave {error!r}"


def test_an_answer_that_is_no_json_is_told_so(tmp_path):
    with contextlib.closing(CommandServer(lambda request: {"x": object()}, home=tmp_path)) as server:
        assert "is not JSON serializable" in ask_server(server.note, {"do": "list"})["error"]


# Over loopback


@pytest.fixture
def loopback(tmp_path):
    with contextlib.closing(CommandServer(lambda request: {"heard": request}, home=tmp_path, port=0)) as opened:
        yield opened


def test_over_loopback_the_token_is_needed_and_goes_no_further(loopback):
    assert ask_server(loopback.note, {"do": "list"}) == {"heard": {"do": "list"}}


@pytest.mark.parametrize("token", ["", "wrong", "ü", 7, None, ["x"]])
def test_over_loopback_others_are_refused(loopback, token):
    answer = ask_server({**loopback.note, "token": token}, {"do": "list"})
    assert answer == {"error": commands.STRANGER}


@pytest.mark.parametrize("line", [b'{"do": "list", "token": "x"}\n', b"\n", b"x" * 10_000, b"GET / HTTP/1.1\r\n\r\n"])
def test_whoever_does_not_begin_with_the_token_is_told_so_and_sent_away(loopback, line):
    with contextlib.closing(commands._connected(loopback.note)) as channel:
        channel.sendall(line)
        assert json.loads(channel.makefile().readline()) == {"error": commands.STRANGER}


def test_the_token_may_come_in_pieces_and_with_the_request(loopback):
    with contextlib.closing(commands._connected(loopback.note)) as channel:
        token = loopback.note["token"].encode()
        for piece in (token[:5], token[5:] + b'\n{"do": ', b'"list"}\n'):
            channel.sendall(piece)
        assert json.loads(channel.makefile().readline()) == {"heard": {"do": "list"}}


def test_those_without_a_token_take_no_slot_no_thread_and_no_memory_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "CLIENTS", 1)
    monkeypatch.setattr(commands, "VISITORS", 10)
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        server = CommandServer(lambda request: {"heard": request}, home=tmp_path, port=0)
        stack.callback(server.close)
        silent = [stack.enter_context(commands._connected(server.note)) for _ in range(30)]
        assert ask_server(server.note, {"do": "list"}) == {"heard": {"do": "list"}}
        assert threading.active_count() <= threads + 2  # the server's own, and that of the one who was heard
        assert silent[0].recv(100) == b""  # the first ones made room
        for channel in silent:  # what they send goes nowhere
            with contextlib.suppress(OSError):
                channel.settimeout(0.1)
                channel.sendall(b"[" * (1 << 20))
        assert len(server._visitors) <= 10
        assert ask_server(server.note, {"do": "list"}) == {"heard": {"do": "list"}}


def test_who_comes_over_loopback_has_a_short_time_for_the_token(loopback, monkeypatch):
    monkeypatch.setattr(commands, "TOKEN_SECONDS", 0.2)
    with contextlib.closing(commands._connected(loopback.note)) as channel:
        channel.sendall(loopback.note["token"].encode())  # and never a line's end
        assert channel.recv(100) == b""


def test_it_listens_on_loopback_alone(loopback):
    assert loopback._listener.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_named(tmp_path, loopback):
    port = loopback.note["port"]
    with pytest.raises(StoreError, match=f"port {port} must be free on loopback; found: .*Use another, or 0 for any"):
        CommandServer(lambda request: {}, home=tmp_path, port=port)


def test_a_port_that_cannot_be_leaves_no_socket(tmp_path):
    with pytest.raises(StoreError, match=r"port 70000 must be free on loopback; found: .*0-65535"):
        CommandServer(lambda request: {}, home=tmp_path, port=70000)
    gc.collect()  # one that is left is a warning, and so an error


def test_only_this_user_can_read_the_token(tmp_path, loopback):
    with ControllerLock(tmp_path, note=loopback.note):
        assert stat.S_IMODE((tmp_path / "controller.lock").stat().st_mode) == 0o600
        assert ask(tmp_path, {"do": "list"}) == {"heard": {"do": "list"}}


# On a Unix socket


def test_only_this_user_can_reach_it(server):
    path = Path(server.note["socket"])
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_closing_removes_every_trace(tmp_path):
    server = CommandServer(lambda request: {}, home=tmp_path)
    assert Path(server.note["socket"]).exists()
    server.close()
    assert not list((tmp_path / "scratch").iterdir())


KILLED = """
import sys, time
from pathlib import Path
from dovetail.control import CommandServer
CommandServer(lambda request: {}, home=Path(sys.argv[1]))
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.process
def test_killed_ones_leave_nothing_outside_the_store_and_nothing_in_it_for_long(tmp_path, server):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for _ in range(2):
        words = [sys.executable, "-c", KILLED, str(tmp_path)]
        with subprocess.Popen(words, env=os.environ | {"TMPDIR": str(temporary)}, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"there\n"
            process.send_signal(signal.SIGKILL)
    assert not list(temporary.iterdir())
    assert len(list((tmp_path / "scratch").iterdir())) == 3
    with contextlib.chdir(tmp_path):
        clear_scratch(Path(), keep=server.folder)
    assert list((tmp_path / "scratch").iterdir()) == [server.folder]
    assert ask_server(server.note, {"do": "status"})["heard"]


def test_where_no_socket_can_be_made_it_listens_on_loopback(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "NAME_BYTES", 10_000)  # as where no open folder has a name
    home = tmp_path / ("d" * 120)
    with contextlib.closing(CommandServer(lambda request: {"heard": request["do"]}, home=home)) as opened:
        assert "port" in opened.note
        assert ask_server(opened.note, {"do": "list"}) == {"heard": "list"}
        assert not list((home / "scratch").iterdir())


def test_the_controller_of_a_store_is_found_through_its_lock(tmp_path, server):
    with ControllerLock(tmp_path, note=server.note):
        assert ask(tmp_path, {"do": "status"})["from"] == os.getpid()


def test_a_store_far_down_can_be_reached_too(tmp_path):
    # A socket's own path may have 107 characters; a store's may have thousands.
    home = tmp_path / ("d" * 120) / ("e" * 120)
    with contextlib.closing(CommandServer(lambda request: {"heard": request}, home=home)) as server:
        assert server.note["socket"].startswith(str(home))
        with ControllerLock(home, note=server.note):
            assert "heard" in ask(home, {"do": "status"})


def test_without_a_controller_the_answer_says_how_to_start_one(tmp_path):
    with pytest.raises(
        StoreError, match=r"a controller must be running on .*; none is\. Start one: dovetail daemon, or dovetail run\."
    ):
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


def test_rows_that_were_sent_before_are_sent_as_all_else_is():
    rows = [Encoded(task="a \u00fc", metrics={"loss": 1.5}), Encoded(task="b", why=None)]
    for _ in range(2):
        line = commands._line({"now_seconds": 1.0, "tasks": rows})
        assert json.loads(line) == {"now_seconds": 1.0, "tasks": [dict(row) for row in rows]}
        assert line.endswith(b"}\n")
    assert json.loads(commands._line({"tasks": ["a", "b"], "done": "yes"})) == {"tasks": ["a", "b"], "done": "yes"}
    assert json.loads(commands._line({"tasks": []})) == {"tasks": []}
