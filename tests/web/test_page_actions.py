"""What a page asks for is checked before a controller hears of it."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dovetail.control import CommandServer
from dovetail.store import ControllerLock
from dovetail.vocabulary import DovetailError
from dovetail.web import page_actions
from dovetail.web.page_actions import act
from tests.web.synthetic import make_task

TASK = make_task("net rate=0.1 seed=0", rate=0.1, seed=0)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A controller's socket that agrees to everything, and what it heard."""
    heard: list[dict[str, Any]] = []

    def agree(request: dict[str, Any]) -> dict[str, Any]:
        heard.append(request)
        names = [task["name"] for task in request.get("tasks", ())]
        listed = [{"task": TASK.name, "why": "its device is taken"}]
        return {"done": f"{request['do']} done", "task": "x", "tasks": names or listed}

    home = tmp_path / "store"
    home.mkdir(mode=0o700)
    with closing(CommandServer(agree, home=home)) as server, ControllerLock(home, note=server.note):
        yield home, heard


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_a_task_is_named_and_so_is_who_asks(asked, verb: str):
    home, heard = asked
    assert act(home, {"do": verb, "id": TASK.identity}, [TASK]) == {"done": f"{verb} done"}
    assert (heard[0]["do"], heard[0]["task"]) == (verb, TASK.name)
    assert heard[0]["asked_by"].endswith(", on the page")


def test_a_grid_is_every_combination_by_names_of_their_own(asked):
    home, heard = asked
    act(home, {"do": "add", "grid": {"seed": [1, 2], "rate": [0.5]}, "deadline_seconds": 60}, [TASK])
    (request,) = heard
    assert [task["name"] for task in request["tasks"]] == ["net seed=1 rate=0.5", "net seed=2 rate=0.5"]
    assert [task["parameters"] for task in request["tasks"]] == [{"rate": 0.5, "seed": 1}, {"rate": 0.5, "seed": 2}]
    assert request["deadline_seconds"] > 60


def test_other_actions_reach_the_controller(asked):
    home, heard = asked
    for wanted in (
        {"do": "stop"},
        {"do": "priority", "priority": 2},
        {"do": "deadline", "deadline_seconds": None},
        {"do": "clone", "parameters": {"rate": 1}, "warm": True, "name": ""},
    ):
        assert "done" in act(home, wanted, [TASK])
    assert [request["do"] for request in heard] == ["stop", "priority", "deadline", "clone"]
    assert "on the page" in heard[0]["reason"]
    assert act(home, {"do": "why"}, [TASK]) == {"done": "its device is taken"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"do": "dance"}, "an action must be one that the page has"),
        ({"do": "add", "grid": {}}, "a grid must be lists of values"),
        ({"do": "add", "grid": {"seed": 3}}, "a grid must be lists of values"),
        ({"do": "add", "grid": {"seed": list(range(2000))}}, "at most 1,000 tasks, got 2,000"),
        ({"do": "add", "grid": {"seed": [1]}, "deadline_seconds": "soon"}, "a deadline must be a number of seconds"),
        ({"do": "clone", "parameters": [1]}, "changed parameters must be names and values"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_asked(asked, wanted: dict[str, Any], said: str):
    home, heard = asked
    with pytest.raises(DovetailError, match=said):
        act(home, wanted, [TASK])
    assert heard == []


def test_no_task_and_no_controller_are_said(tmp_path: Path):
    with pytest.raises(DovetailError, match="an action must be about a task in the store"):
        act(tmp_path, {"do": "pause", "id": "x"}, [])
    with pytest.raises(DovetailError, match="a controller must be running"):
        act(tmp_path, {"do": "pause"}, [TASK])


def test_a_socket_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_actions, "PATIENCE_SECONDS", 0.3)
    home = tmp_path / "store"
    home.mkdir(mode=0o700)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        refused = pytest.raises(DovetailError, match="must answer; found: timed out")
        with ControllerLock(home, note={"port": port, "token": "t"}), refused:
            act(home, {"do": "pause"}, [TASK])
