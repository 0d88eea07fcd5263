"""A real browser on the real command: what is opened, seen, and must not happen."""

import contextlib
import os
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import ENVIRONMENT

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
ENDED = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
VIEWS = ("overview", "schedule", "tasks", "compare", "cluster", "pipeline")


def find_chromium() -> str:
    """Where a Chromium is, or the test is skipped, saying so."""
    pytest.importorskip("playwright.sync_api", reason="no browser is driven: playwright is not installed")
    names = (os.environ.get("DOVETAIL_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser is driven: chromium is not installed ('make browser', or apt-get install chromium)")
    return found


@contextlib.contextmanager
def serving(*stores: Path, options: tuple[str, ...] = (), cwd: Path | None = None) -> Iterator[str]:
    """The address with its token of the real `dovetail ui` on these stores, until the end."""
    words = [sys.executable, "-m", "dovetail", "ui", "--no-browser", *options]
    words += [word for store in stores for word in ("--store", str(store))]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT, cwd=cwd
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline()]
        while "token=" not in lines[-1]:
            assert lines[-1], f"the page must be served; it ended with {process.wait()}: {''.join(lines)}"
            lines.append(process.stdout.readline())
        yield lines[-1].strip()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


class Sight:
    """One page in a browser, with all that went wrong in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.wrong: list[str] = []
        # A server that ends before its pages, as most do here, is no fault of theirs.
        self.allowed: tuple[str, ...] = ENDED
        self._host = urllib.parse.urlsplit(address).netloc
        page.on("console", lambda message: message.type in ("error", "warning") and self._note(message.text))
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("request", self._look_at)

    def _note(self, text: str) -> None:
        self.wrong.append(text)

    def _look_at(self, request: Any) -> None:
        parts = urllib.parse.urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "file") and parts.netloc != self._host:
            self._note(f"asked {request.url}")

    def open(self, view: str = "overview", **chosen: str) -> "Sight":
        """Come by the link with the token, then to a view."""
        self.page.goto(self.address)
        self.page.wait_for_selector("nav a")
        return self.to(view, **chosen)

    def to(self, view: str, **chosen: str) -> "Sight":
        words = urllib.parse.urlencode(chosen)
        self.page.evaluate("address => { location.hash = address; }", f"#/{view}{'?' if words else ''}{words}")
        self.page.wait_for_selector("main section, main .tiles")
        return self

    @property
    def text(self) -> str:
        return self.page.inner_text("main")

    def sees(self, words: str, *, within: str = "body", seconds: float = 30.0) -> "Sight":
        """Wait until these words are in sight."""
        self.page.wait_for_function(
            "([within, words]) => document.querySelector(within)?.innerText.includes(words)",
            arg=[within, words],
            timeout=1000 * seconds,
        )
        return self

    def check(self) -> None:
        """Nothing may have gone wrong but what was allowed to."""
        left = [text for text in self.wrong if not any(word in text for word in self.allowed)]
        assert not left, left


AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def broken_rules(sight: "Sight", what: str) -> dict[str, list[str]]:
    """The rules of WCAG of level A and AA that axe-core finds broken in what is shown, with where and how."""
    if not sight.page.evaluate("Boolean(window.axe)"):
        sight.page.evaluate(AXE)
    result = sight.page.evaluate("rules => axe.run(document, { runOnly: rules })", RULES)
    return {
        f"{what}: {each['id']}": [node["html"][:120] + node["failureSummary"] for node in each["nodes"][:2]]
        for each in result["violations"]
    }
