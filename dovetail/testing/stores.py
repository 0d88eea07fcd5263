"""What every store must hold: what was acknowledged is there, whoever dies, and all of it reads back equal.

```python
from dovetail.testing.stores import StoreConformance

class TestMine(StoreConformance):
    factory = "mine.store:open_store"     # called as factory(home, write=True)
```
"""

import importlib
import math
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.store import Point
from dovetail.vocabulary import (
    Cluster,
    Event,
    Kind,
    Option,
    Placement,
    Plan,
    Profile,
    Program,
    Schedule,
    Stop,
    StoreError,
    Task,
    TaskId,
)
from dovetail.vocabulary.events import StepsDone, Warned

KILLS = 6


class StoreConformance:
    """Laws of a store. `factory` names what opens one, as `module:name`; other processes open it by that name."""

    factory = "dovetail.store:Store"

    def open(self, home: Path | None, *, write: bool = False) -> Any:
        """Open the store at `home`, as users of it would."""
        return _open(self.factory, home, write=write)

    # The laws

    def test_what_is_added_is_read_back(self, tmp_path: Path) -> None:
        task, option = _task("a"), Option(families=("f",), technique="t", kind="cpu", count=1, step_seconds=(0.5,))
        profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.1, peak_bytes=3, edges=(("0", "1"),))
        place = Placement(
            tasks=(TaskId("a"),), steps=(1,), option=option, devices=("n0:0",), start_seconds=0, duration_seconds=1
        )
        plan = Plan(schedule=Schedule(placements=(place,)), bound_seconds=0.5, explanation=("because",))
        cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
        with self.open(tmp_path / "store", write=True) as store:
            store.add(tasks=[("w", task)], profiles=[profile], hardware=[("here", cluster)])
            number = store.add_plan(plan, workload="w", at_seconds=2.5)
        with self.open(tmp_path / "store") as store:
            assert store.tasks() == store.tasks(workload="w") == [("w", task)]
            assert store.tasks(workload="other") == []
            assert store.profiles() == [profile]
            assert store.plans(workload="w") == store.plans() == [(number, 2.5, plan)]
            assert store.hardware("here", Cluster) == cluster
            assert store.hardware("there", Cluster) is None

    def test_events_come_back_in_order_and_by_task(self, tmp_path: Path) -> None:
        events = [_event(n, task="ab"[n % 2]) for n in range(10)]
        with self.open(tmp_path, write=True) as store:
            store.add(events=events[:5])
            store.add(events=events[5:])
            found = list(store.events())
            assert [event for _, event in found] == events
            assert [event for _, event in store.events(task="b")] == events[1::2]
            assert [event for _, event in store.events(after=found[6][0])] == events[7:]

    def test_points_are_replaced_by_step(self, tmp_path: Path) -> None:
        with self.open(tmp_path, write=True) as store:
            store.add(points=[_point(1, 0.5), _point(2, 0.4), _point(2, 9.0, name="other")])
            store.add(points=[_point(2, 0.3), _point(3, 0.2)])
            assert [(p.step, p.value) for p in store.points("a", name="loss")] == [(1, 0.5), (2, 0.3), (3, 0.2)]
            assert [p.name for p in store.points("a")] == ["loss"] * 3 + ["other"]
            assert store.points("b") == []

    def test_points_that_are_no_finite_number(self, tmp_path: Path) -> None:
        with self.open(tmp_path, write=True) as store:
            store.add(points=[_point(1, math.nan), _point(2, math.inf), _point(3, -math.inf)])
            found = [point.value for point in store.points("a")]
        assert math.isnan(found[0])
        assert found[1:] == [math.inf, -math.inf]

    def test_events_that_hold_no_finite_number(self, tmp_path: Path) -> None:
        event = StepsDone(at_seconds=0.0, step=1, points=(("loss", 1, math.inf),), steps_per_second=math.nan)
        with self.open(tmp_path, write=True) as store:
            store.add(events=[event])
            ((_, found),) = store.events()
        assert found.points == (("loss", 1, math.inf),)
        assert math.isnan(found.steps_per_second)

    def test_all_of_a_write_or_nothing(self, tmp_path: Path) -> None:
        class Unwritable(Exception):
            pass

        def points() -> Any:
            yield _point(1, 0.5)
            raise Unwritable

        with self.open(tmp_path, write=True) as store:
            with pytest.raises(Unwritable):
                store.add(events=[_event(1)], points=points())
            assert list(store.events()) == []
            store.add(events=[_event(2)])
            assert len(list(store.events())) == 1

    def test_a_reader_cannot_write(self, tmp_path: Path) -> None:
        self.open(tmp_path, write=True).close()
        with self.open(tmp_path) as reader, pytest.raises(StoreError, match="must accept writes"):
            reader.add(events=[_event(1)])

    def test_readers_see_all_that_was_acknowledged_while_another_process_writes(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as writer:
            for _ in range(20):
                acknowledged = _next_acknowledged(writer)
                with self.open(tmp_path) as one, self.open(tmp_path) as two:
                    for store in (one, two):
                        assert len(_numbers(store)) > acknowledged
            writer.kill()

    def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(self, tmp_path: Path) -> None:
        moments = random.Random(0)
        for _ in range(KILLS):
            with self._writer(tmp_path) as writer:
                acknowledged = -1
                for _ in range(moments.randrange(1, 30)):
                    acknowledged = _next_acknowledged(writer)
                writer.send_signal(signal.SIGKILL)
                acknowledged = max([acknowledged, *map(int, writer.stdout or ())])
            with self.open(tmp_path, write=True) as store:
                numbers = _numbers(store)
            # At most the one write that was under way may be there beyond what was acknowledged.
            assert numbers in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))

    def test_no_store_where_none_is(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="there must be a store"):
            self.open(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()

    def test_in_memory(self) -> None:
        with self.open(None, write=True) as store:
            store.add(events=[_event(0)])
            assert _numbers(store) == [0]

    def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        store = self.open(tmp_path, write=True)
        store.close()
        store.close()

    def _writer(self, home: Path) -> "subprocess.Popen[str]":
        code = f"from dovetail.testing.stores import write_for_ever; write_for_ever({self.factory!r}, {str(home)!r})"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def write_for_ever(factory: str, home: str) -> None:
    """Add numbered events, telling each number once it is acknowledged, until killed."""
    store = _open(factory, Path(home), write=True)
    number = len(_numbers(store))
    while True:
        store.add(events=[_event(number)], points=[_point(number, float(number))])
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


def _open(factory: str, home: Path | None, *, write: bool) -> Any:
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(home, write=write)


def _next_acknowledged(writer: "subprocess.Popen[str]") -> int:
    assert writer.stdout is not None
    return int(writer.stdout.readline())


def _numbers(store: Any) -> list[int]:
    return [int(event.message) for _, event in store.events()]


def _event(number: int, *, task: str = "") -> Event:
    return Warned(at_seconds=float(number), task=TaskId(task), attempt=1, message=str(number))


def _point(step: int, value: float, *, name: str = "loss") -> Point:
    return Point(task="a", name=name, step=step, value=value, at_seconds=0.0)


def _task(name: str) -> Task:
    return Task(name=name, program=Program(reference="a.py:f"), parameters={"sizes": [1, 2]}, stop=Stop(steps=3))
