"""The page on real controllers: every action to its end, a controller killed and back, one that hangs, `run --ui`."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.store import holder
from tests.cli.processes import begin, dovetail, end, events, rows, until, write
from tests.web.browser import Sight, broken_rules, find_chromium, serving

pytestmark = pytest.mark.process

MODELS = """
import time

import torch

import dovetail as dt


def line(rate=0.1, seed=0, pause=0.01):
    model = torch.nn.Linear(1, 1)

    def loss(model, batch):
        time.sleep(pause)
        return model(batch).square().mean()

    return dt.Training(
        model=model, batches=[torch.ones(4, 1)], loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
    )


workload = dt.grid(line, rate=[0.1, 0.01, 0.001], steps=STEPS)
"""
NAMES = ("line rate=0.1", "line rate=0.01", "line rate=0.001")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    find_chromium()
    write(tmp_path, models=MODELS.replace("STEPS", "100_000"))
    process = started(tmp_path)
    assert dovetail("submit", "models.py", cwd=tmp_path).code == 0
    yield tmp_path, process
    kill(tmp_path)
    while STARTED:
        STARTED.pop().wait()


# Daemons that tests have started and nobody has waited for.
STARTED: "list[subprocess.Popen[str]]" = []


def started(folder: Path) -> "subprocess.Popen[str]":
    words = ("daemon", "--quiet", "--round", "5s", "--save-seconds", "2")
    process = begin(*words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    STARTED.append(process)
    until(lambda: "socket" in (holder(folder / ".dovetail") or {}), what="a daemon that listens")
    return process


def kill(folder: Path) -> None:
    """End the controller that runs on a folder's store, if one does."""
    if found := holder(folder / ".dovetail"):
        os.kill(found["process"], signal.SIGKILL)
        until(lambda: holder(folder / ".dovetail") is None, what="the end of the controller")


def act(sight: Sight, button: str, verb: str, says: str, **fields: str) -> None:
    """Press a button of a task's page, fill in its dialog, and wait for the controller's answer. A dialog must be as
    accessible as the views."""
    sight.page.click(f"main button:text-is('{button}')")
    assert broken_rules(sight, button) == {}
    for name, value in fields.items():
        sight.page.fill(f"dialog [name={name}]", value)
    sight.page.click(f"dialog button[type=submit]:text-is('{verb}')")
    sight.sees(says, within="dialog")
    sight.page.click("dialog button:text-is('Close')")


def open_task(sight: Sight, name: str) -> None:
    sight.to("tasks")
    sight.page.fill("input[type=search]", name)
    sight.page.click(f"a:text-is('{name}')")


def test_every_action_to_its_end(daemon: tuple[Path, Any], look: Callable[..., Sight]):
    folder, _ = daemon
    first = NAMES[0]
    with serving(folder / ".dovetail", options=("--port", "7700")) as found:
        sight = look(found).open().sees("Controller runs")
        until(lambda: events(folder, first, "saved"), what="something saved")
        open_task(sight, first)
        act(sight, "Priority…", "Set", "has priority 3, before 1", priority="3")
        act(sight, "Deadline…", "Set", "is to have ended in", deadline_seconds="2h")
        sight.sees("Deadline\n20")
        act(sight, "Clone…", "Clone", "line rate=0.5 begins", parameters="rate=0.5\nseed=0", name="line rate=0.5")
        act(sight, "Add seeds or a grid…", "Submit", "4 tasks submitted", grid="seed=1..2\nrate=0.2, 0.3", priority="1")
        act(sight, "Pause", "Pause", f"{first} is paused")
        sight.sees("‖ paused", within="main dl")
        act(sight, "Resume", "Resume", "goes on from step")
        act(sight, "Cancel", "Cancel", f"{first} is cancelled")
        sight.sees("– cancelled", within="main dl")
        sight.to("tasks").sees("8 of 8 tasks")
        sight.to("overview").sees("Asked for").sees("on the page")
        asked = {event.kind: event.asked_by for event in events(folder, first) if getattr(event, "asked_by", "")}
        assert {"prioritized", "dated", "paused", "resumed"} <= asked.keys()
        assert {"cancelling", "cancelled"} & asked.keys()
        assert all(re.fullmatch(r".+, on the page", who) for who in asked.values())
        sight.page.click("header button:text('Stop all')")
        sight.page.click("dialog button:text-is('Save and stop')")
        sight.sees("then the controller stops", within="dialog")
        sight.page.click("dialog button:text-is('Close')")
        sight.sees("No controller runs")


def test_what_the_controller_refuses_is_shown(daemon: tuple[Path, Any], look: Callable[..., Sight]):
    folder, _ = daemon
    with serving(folder / ".dovetail", options=("--port", "7710")) as found:
        sight = look(found).open().sees("Controller runs")
        sight.allowed += ("400 (Bad Request)",)
        open_task(sight, NAMES[1])
        sight.page.click("main button:text-is('Clone…')")
        sight.page.fill("dialog [name=parameters]", "rtae=0.5")
        sight.page.locator("dialog [name=warm]").set_checked(False)
        sight.page.click("dialog button[type=submit]")
        sight.sees("Did you mean 'rate'?", within="dialog")
        sight.page.fill("dialog [name=parameters]", "rate")
        sight.page.click("dialog button[type=submit]")
        sight.sees("Each line must be a name and a value", within="dialog")


def test_a_page_outlives_its_controller(daemon: tuple[Path, Any], look: Callable[..., Sight]):
    folder, process = daemon
    with serving(folder / ".dovetail", options=("--port", "7720")) as found:
        sight = look(found).open().sees("Controller runs")
        until(lambda: events(folder, NAMES[0], "saved"), what="something saved")
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = time.monotonic()
        sight.sees("No controller runs", seconds=10)
        assert time.monotonic() - began < 10, "it is said within 10 s"
        sight.to("tasks").sees("3 of 3 tasks")
        started(folder)
        sight.sees("Controller runs")
        before = sight.page.inner_text(".rows")
        until(lambda: sight.page.inner_text(".rows") != before, what="steps that go on in the table")


@pytest.mark.slow
def test_a_controller_that_hangs_is_given_up(daemon: tuple[Path, Any], look: Callable[..., Sight]):
    folder, process = daemon
    with serving(folder / ".dovetail", options=("--port", "7730")) as found:
        sight = look(found).open().sees("Controller runs")
        sight.allowed += ("400 (Bad Request)",)
        open_task(sight, NAMES[2])
        process.send_signal(signal.SIGSTOP)
        try:
            sight.page.click("main button:text-is('Pause')")
            sight.page.click("dialog button[type=submit]")
            sight.sees("must answer; found: timed out", within="dialog", seconds=40)
        finally:
            process.send_signal(signal.SIGCONT)


def test_a_run_with_its_page(tmp_path: Path, look: Callable[..., Sight]):
    find_chromium()
    write(tmp_path, models=MODELS.replace("STEPS", "600"))
    process = begin("run", "models.py", "--ui", "--quiet", "--json", cwd=tmp_path)
    assert process.stderr is not None
    line = process.stderr.readline()
    while "token=" not in line:
        assert line
        line = process.stderr.readline()
    sight = look(line.strip())
    sight.open().sees("of 3 tasks")
    sight.to("schedule").sees("Plan 1 of")
    sight.to("cluster").sees("Devices over time")
    finished = end(process)
    assert finished.code == 0, finished.err
    assert {row["status"] for row in rows(tmp_path).values()} == {"finished"}
    sight.sees("No connection")
