"""Who is let in, who may act, and what goes with every answer: the real command, asked by plain requests."""

import http.client
import json
import re
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.store import Store
from tests.cli.processes import dovetail
from tests.web.browser import serving
from tests.web.synthetic import fill_sweep

pytestmark = pytest.mark.process


class Asker:
    """A client with a cookie, or without one."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        self.host, self.token = parts.netloc, urllib.parse.parse_qs(parts.query)["token"][0]
        self.cookie = ""

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            sent["cookie"] = self.cookie
        connection.request(method, path, body=body or None, headers=sent)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    def arrive(self) -> "Asker":
        status, headers, _ = self.ask(f"/?token={self.token}")
        assert (status, headers["location"]) == (303, "/")
        self.cookie = headers["set-cookie"].partition(";")[0]
        return self

    def about(self) -> dict:
        return json.loads(self.ask("/api/about")[2])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "store"
    with Store(path, write=True) as store:
        fill_sweep(store)
    return path


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with serving(home, options=("--port", "7600")) as found:
        yield found


PATHS = ("/", "/page/main.js", "/vendor/uPlot.iife.min.js", "/api/about", "/api/0/snapshot", "/api/0/events",
         "/api/0/curves", "/api/0/plan?number=1", "/api/0/task?id=x", "/api/0/cluster")  # fmt: skip


def test_nobody_gets_anything_without_the_token(address: str):
    stranger = Asker(address)
    for path in PATHS:
        status, headers, text = stranger.ask(path)
        assert (status, "charlm" in text) == (401, False), path
        assert "dovetail ui" in text
        assert "set-cookie" not in headers
    for token in ("", "x", stranger.token[:-1], stranger.token + "x"):
        assert stranger.ask(f"/?token={token}")[0] == 401
    assert stranger.ask(f"/api/0/snapshot?token={stranger.token}")[0] == 401, "the token opens the page alone"
    stranger.cookie = "dovetail-7600=guess"
    assert stranger.ask("/")[0] == 401


def test_the_cookie_is_for_this_site_and_no_script(address: str):
    known = Asker(address)
    _, headers, _ = known.ask(f"/?token={known.token}")
    assert re.search(r"HttpOnly", headers["set-cookie"], re.IGNORECASE)
    assert re.search(r"SameSite=strict", headers["set-cookie"], re.IGNORECASE)
    assert known.token not in headers["set-cookie"]


def test_every_answer_forbids_what_is_not_needed(address: str):
    known = Asker(address).arrive()
    for path in (*PATHS[:5], *PATHS[6:]):
        _, headers, _ = known.ask(path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';"), path
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "server" not in headers


def test_a_name_that_somebody_else_points_here_is_refused(address: str):
    known = Asker(address).arrive()
    assert known.ask("/api/about", Host="evil.example")[0] == 421
    assert known.ask("/api/about", Host="localhost:1")[0] == 200, "as over a tunnel"


def test_an_action_must_come_from_this_page(address: str):
    known = Asker(address).arrive()
    action = known.about()["action"]
    ask = {"method": "POST", "body": '{"do": "stop"}', "content_type": "application/json"}
    good = {"x_dovetail_action": action, "origin": f"http://{known.host}"}
    for wrong in (
        {},
        {**good, "x_dovetail_action": "guess"},
        {**good, "origin": "http://evil.example"},
        {**good, "sec_fetch_site": "cross-site"},
    ):
        status, _, text = known.ask("/api/0/ask", **ask, **wrong)
        assert (status, "must come from this very page" in text) == (403, True)
    status, _, text = known.ask("/api/0/ask", **ask, **good)
    assert (status, "a controller must be running" in text) == (400, True)
    assert known.ask("/api/0/ask", **good)[0] == 405
    for body, said in (("[1]", "object"), ("{", "Expecting"), ('{"do": "pause", "id": "x"}', "about a task"),
                       ('{"do": "x" , "id": 5}', "about a task"), ("x" * 2_000_000, "at most")):  # fmt: skip
        status, _, text = known.ask("/api/0/ask", **{**ask, "body": body}, **good)
        assert status == 400, body[:50]
        assert said in text


def test_who_may_only_look_cannot_act(home: Path):
    with serving(home, options=("--port", "7610", "--read-only")) as found:
        known = Asker(found).arrive()
        assert known.about() == {"stores": [str(home)], "read_only": True, "action": ""}
        status, _, text = known.ask("/api/0/ask", method="POST", body="{}", x_dovetail_action="")
        assert (status, "for looking only" in text) == (403, True)


def test_what_is_not_there_is_said(address: str):
    known = Asker(address).arrive()
    for path in ("/api/7/snapshot", "/api/0/plan?number=99", "/api/0/plan?number=x", "/api/0/task?id=nobody",
                 "/page/nothing.js", "/page/..%2Fserver.py", "/vendor/uPlot.LICENSE", "/nothing"):  # fmt: skip
        assert known.ask(path)[0] == 404, path


def test_a_taken_port_is_passed_over_and_said(home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 7620))
        taken.listen()
        with serving(home, options=("--port", "7620")) as found:
            assert urllib.parse.urlsplit(found).port != 7620
            assert Asker(found).arrive().ask("/api/about")[0] == 200


def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path):
    found = dovetail("ui", "--host", "203.0.113.9", "--no-browser", cwd=tmp_path)
    assert found.code == 2
    assert "the live page must have a port of 203.0.113.9" in found.err
