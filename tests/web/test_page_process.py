"""A port that is free, a browser only where there is one, and what is missing said."""

import socket
import sys
from pathlib import Path

import pytest

from dovetail.vocabulary import DovetailError
from dovetail.web import page_process
from tests.cli.processes import begin


def test_the_next_free_port_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with page_process._listen("127.0.0.1", port) as found:
            assert port < found.getsockname()[1] < port + page_process.PORTS


@pytest.mark.parametrize("port", [-5, 70_000])
def test_a_port_that_cannot_be_is_refused(port: int):
    with pytest.raises(DovetailError, match="the live page must have a port of"):
        page_process._listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, False)],
)
def test_a_browser_is_opened_where_a_window_can_be(monkeypatch, variables: dict[str, str], expected: bool):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert page_process._has_browser() is expected


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DovetailError, match=r"starlette and uvicorn installed: pip install 'dovetail\[ui\]'"):
        page_process.check_installed()


@pytest.mark.process
def test_a_taken_port_is_said_before_the_address(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 7650))
        taken.listen()
        process = begin("ui", "--port", "7650", "--no-browser", cwd=tmp_path)
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.terminate()
        process.communicate()
    assert lines[0] == "port 7650 is taken; this is the next free one\n"
    assert lines[1].startswith("http://127.0.0.1:7651/?token=")
