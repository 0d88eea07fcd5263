"""A daemon, a process of its own, asked from Python."""

import pytest

import dovetail as dt
from dovetail.store import holder
from dovetail.vocabulary import InvalidWorkload, StoreError
from tests.cli.processes import HOME, begin, end, until, write
from tests.cli.test_daemon import PROGRAMS

SLOW = {"steps": 1_000_000, "pause": 0.005}


@pytest.mark.process
def test_tasks_are_submitted_listed_waited_for_and_cancelled(tmp_path):
    folder = write(tmp_path, programs=PROGRAMS)
    program = f"{folder / 'programs.py'}:line"
    process = begin("daemon", "--round", "3s", cwd=folder)
    try:
        until(lambda: holder(folder / HOME), what="a daemon")
        client = dt.connect(folder / HOME)
        assert client.submit(dt.workload([dt.task(program, name="short", steps=20)])) == ["short"]
        result = client.wait("short", timeout_seconds=100)
        assert [(task.name, task.status) for task in result.tasks] == [("short", "finished")]

        client.submit(dt.workload([dt.task(program, name="long", **SLOW)]), priority=2.0, deadline_seconds=3600.0)
        (row,) = [row for row in client.list() if row["task"] == "long"]
        assert (row["priority"], row["parameters"]["pause"]) == (2.0, 0.005)
        with pytest.raises(TimeoutError, match="long have not"):
            client.wait(timeout_seconds=0.1)
        assert client.clone("long", warm=False, name="copy", slope=5.0) == "copy"
        assert client.priority("copy", 3.0) == "copy has priority 3, before 2"
        assert client.deadline("copy", 7200.0).startswith("copy is to have ended in ")
        assert client.deadline("copy", None) == "copy has no deadline"
        assert client.pause("copy").startswith("copy is paused")
        assert client.resume("copy").startswith("copy goes on from step")
        assert client.cancel("long") == "long is cancelled"
        client.cancel("copy")
        statuses = {task.name: task.status for task in client.wait(timeout_seconds=100).tasks}
        assert statuses == {"short": "finished", "long": "cancelled", "copy": "cancelled"}

        with pytest.raises(InvalidWorkload, match=r"the task must be one of .*, got 'nobody'"):
            client.wait("nobody")
        halved = dt.grid(program, slope=[1, 2], steps=9, halving=dt.Halving(metric="m", first_steps=3))
        with pytest.raises(InvalidWorkload, match="cannot be halved"):
            client.submit(halved)
        assert "saved" in client.stop()
    finally:
        found = end(process)
    assert found.code == 0, found.err
    with pytest.raises(StoreError, match="a controller must be running"):
        client.list()
