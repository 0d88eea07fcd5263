"""What every tracker must hold: each point arrives once and in order, whoever is killed in between.

```python
from dovetail.testing.trackers import TrackerConformance

class TestMine(TrackerConformance):
    def address(self, folder): return f"mine:{folder}"
    def read(self, folder): ...              # what the tracker's own reader finds there
```
"""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.store import Point, Store
from dovetail.trackers import check_trackers, parse_tracker
from dovetail.trackers.cursor import TrackerCursor
from dovetail.trackers.following import open_sender
from dovetail.vocabulary import Program, Stop, StoreBusy, Task
from dovetail.vocabulary.events import AttemptStarted, TaskFailed, TaskFinished
from dovetail.vocabulary.request_events import TaskRestarted

Curves = Mapping[str, Mapping[str, list[tuple[int, float]]]]
START = 1_790_000_000.0


class TrackerConformance:
    """Laws of a tracker. A subclass says where one is, by a folder, and reads what it holds with its own means."""

    def address(self, folder: Path) -> str:
        """The address of the tracker under test, as a user would write it."""
        raise NotImplementedError

    def read(self, folder: Path) -> Curves:
        """By the run's name, and by metric: steps and values, in the order in which they are kept."""
        raise NotImplementedError

    def statuses(self, folder: Path) -> Mapping[str, str]:
        """By the run's name, how it stands in the tracker's own words; empty where it has no such word."""
        return {}

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """A store with two tasks, of which nothing is known yet."""
        home = tmp_path / "store"
        with Store(home, write=True) as store:
            store.add(tasks=[("sweep", task) for task in (_task("a"), _task("b", pwd="hunter22"))])
        return home

    def send(self, home: Path, folder: Path) -> int:
        """Send what is new, as a new process would; how many points that were."""
        with open_sender(parse_tracker(self.address(folder)), home) as (sender, _):
            assert sender.send_new() == []
            return sender.sent_points

    # The laws

    def test_every_point_arrives_once_and_in_order(self, home: Path, tmp_path: Path) -> None:
        check_trackers(self.address(tmp_path))
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 21))
        finish_task(home, "a", step=20)
        assert self.send(home, tmp_path) == 30
        assert self.send(home, tmp_path) == 0
        found = self.read(tmp_path)["a"]
        assert found["train/loss"] == [(step, 1.0 / step) for step in range(1, 21)]
        assert [step for step, _ in found["accuracy"]] == list(range(2, 21, 2))

    def test_what_comes_later_is_added_by_another_process(self, home: Path, tmp_path: Path) -> None:
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 11))
        self.send(home, tmp_path)
        # All metrics of one step arrive together: the newest step of a task that runs is left for later.
        assert [step for step, _ in self.read(tmp_path)["a"]["train/loss"]] == list(range(1, 10))
        add_points(home, "a", range(8, 21))  # three steps again, as after a loss
        finish_task(home, "a", step=20)
        self.send(home, tmp_path)
        assert [step for step, _ in self.read(tmp_path)["a"]["train/loss"]] == list(range(1, 21))

    def test_a_value_that_is_no_number_arrives(self, home: Path, tmp_path: Path) -> None:
        with Store(home, write=True) as store:
            store.add(points=[_point("a", "odd", 3, math.nan)])
        self.send(home, tmp_path)
        ((step, value),) = self.read(tmp_path)["a"]["odd"]
        assert (step, math.isnan(value)) == (3, True)

    def test_no_secret_is_sent(self, home: Path, tmp_path: Path) -> None:
        with Store(home, write=True) as store:
            store.add(points=[_point("b", "loss hunter22", 1, 1.0)])
        self.send(home, tmp_path)
        (name,) = self.read(tmp_path)["b"]
        assert "hunter22" not in name
        held = [file for file in tmp_path.rglob("*") if file.is_file() and home not in file.parents]
        assert not [file for file in held if b"hunter22" in file.read_bytes()]

    def test_a_task_that_is_trained_anew_is_another_run(self, home: Path, tmp_path: Path) -> None:
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 6))
        finish_task(home, "a", step=5)
        self.send(home, tmp_path)
        identity = _task("a").identity
        with Store(home, write=True) as store:
            event = TaskRestarted(task=identity, attempt=1, at_seconds=START + 50)
            store.add(events=[event], without_points_of=[identity])
        begin_attempt(home, "a", attempt=2)
        add_points(home, "a", range(1, 4))
        finish_task(home, "a", step=3, attempt=2)
        self.send(home, tmp_path)
        assert [step for step, _ in self.read(tmp_path)["a"]["train/loss"]] == [1, 2, 3]

    def test_how_tasks_end_is_told(self, home: Path, tmp_path: Path) -> None:
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 3))
        finish_task(home, "a", step=2)
        begin_attempt(home, "b")
        with Store(home, write=True) as store:
            failed = TaskFailed(
                task=_task_named("b").identity, attempt=1, at_seconds=START + 9, reason="it burnt hunter22"
            )
            store.add(events=[failed])
        self.send(home, tmp_path)
        statuses = self.statuses(tmp_path)
        assert not statuses or statuses["a"] != statuses["b"]

    def test_only_one_process_sends(self, home: Path, tmp_path: Path) -> None:
        address = parse_tracker(self.address(tmp_path))
        holding = TrackerCursor(home, address.kind, address.place)
        with pytest.raises(StoreBusy, match="one process at a time"):
            self.send(home, tmp_path)
        holding.close()
        self.send(home, tmp_path)

    @pytest.mark.process
    def test_a_kill_between_sending_and_noting_sends_nothing_twice(self, home: Path, tmp_path: Path) -> None:
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 1501))  # three batches
        finish_task(home, "a", step=1500)
        # What is noted first is that the workload's run was opened and told of, and the task's opened: then points.
        code = f"from {__name__} import send_and_die; send_and_die({str(home)!r}, {self.address(tmp_path)!r}, 4)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
        assert found.returncode == -signal.SIGKILL, found.stderr
        sent = self.send(home, tmp_path)
        curves = self.read(tmp_path)["a"]
        assert sent >= 2250 - 1000
        assert [step for step, _ in curves["train/loss"]] == list(range(1, 1501))
        assert [step for step, _ in curves["accuracy"]] == list(range(2, 1501, 2))


def send_and_die(home: str, address: str, notes: int) -> None:
    """Send, and be killed in place of the note of this number."""
    left = [notes]
    note: Any = TrackerCursor.note

    def note_or_die(cursor: TrackerCursor, *what: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        note(cursor, *what)

    setattr(TrackerCursor, "note", note_or_die)  # noqa: B010
    with open_sender(parse_tracker(address), Path(home)) as (sender, _):
        sender.send_new()


def _task(name: str, **parameters: object) -> Task:
    stop = Stop(steps=5000)
    return Task(
        name=name, program=Program(reference="sweep.py:charlm"), parameters={"width": 8, **parameters}, stop=stop
    )


def _point(task: str, name: str, step: int, value: float) -> Point:
    return Point(task=_task_named(task).identity, name=name, step=step, value=value, at_seconds=START + step / 10)


def _task_named(name: str) -> Task:
    return _task("a") if name == "a" else _task("b", pwd="hunter22")


def begin_attempt(home: Path, task: str, *, attempt: int = 1) -> None:
    """Record in the store that an attempt of a task has begun."""
    where: dict[str, Any] = {"placement": f"p{attempt}", "devices": ("n0:0",), "predicted_seconds": 9.0}
    event = AttemptStarted(
        task=_task_named(task).identity, attempt=attempt, at_seconds=START + 60 * attempt, step=0, until=5000, **where
    )
    with Store(home, write=True) as store:
        store.add(events=[event])


def finish_task(home: Path, task: str, *, step: int, attempt: int = 1) -> None:
    """Record in the store that a task has finished."""
    event = TaskFinished(
        task=_task_named(task).identity, attempt=attempt, at_seconds=START + 60 * attempt + 40, step=step
    )
    with Store(home, write=True) as store:
        store.add(events=[event])


def add_points(home: Path, task: str, steps: range) -> None:
    """A loss at each of these steps, and an accuracy at every other one."""
    points = [_point(task, "train/loss", step, 1.0 / step) for step in steps]
    points += [_point(task, "accuracy", step, step / 5000) for step in steps if not step % 2]
    with Store(home, write=True) as store:
        store.add(points=points)
