"""What every engine must hold: whatever happens to an order, it ends once, tells all of it, and frees its devices.

```python
import pytest
from dovetail.testing.engines import EngineConformance, Ground

@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    ground = Ground(engine=MyEngine(...), cluster=..., reference=write_program(home), home=home)
    yield ground
    ground.engine.close()

@pytest.fixture
def another(tmp_path):
    return MyEngine(...)

class TestMine(EngineConformance):
    pass
```
"""

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail.engines import Engine, MemberOrder, Order
from dovetail.vocabulary import Cluster, Event, Program, Stop, Task
from dovetail.vocabulary.events import DevicesReleased, TaskFingerprinted, TrialMeasured

ENDS = ("finished", "waiting", "stopped", "failed", "lost")
# An engine may wait for half a second and say nothing, over and over, while a worker starts.
PATIENCE = 600
MANY_STEPS = 1_000_000

PROGRAM = """
import torch
from torch import nn

import dovetail as dt


def tiny(width=4, learning_rate=0.1, seed=0):
    model = nn.Linear(width, 1)
    batches = [torch.randn(8, width) for _ in range(4)]
    return dt.Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
        evaluate=lambda model: {"weight": float(model.weight.norm())},
    )
"""


def write_program(folder: Path) -> str:
    """A tiny program in a file of its own; gives its reference."""
    path = folder / "tiny.py"
    path.write_text(PROGRAM)
    return f"{path}:tiny"


@dataclasses.dataclass(kw_only=True)
class Ground:
    """What a suite runs on: an engine, a cluster of at least two devices, a program, and a directory."""

    engine: Engine
    cluster: Cluster
    reference: str
    home: Path
    numbers: "itertools.count[int]" = dataclasses.field(default_factory=itertools.count)

    def task(self, **parameters: float) -> Task:
        """Make a task of a name that no other test uses."""
        name = f"task-{next(self.numbers)}"
        return Task(name=name, program=Program(reference=self.reference), parameters=parameters, stop=Stop(steps=5))

    def member(self, task: Task, *, until_step: int = 5, attempt: int = 1, final: bool = True) -> MemberOrder:
        """An order's member that trains `task` until a step."""
        directory = str(self.home / "checkpoints" / task.identity)
        return MemberOrder(task=task, attempt=attempt, until_step=until_step, final=final, directory=directory)

    def order(self, *members: MemberOrder, purpose: str = "train", device: int = 0) -> Order:
        """An order on one device; nothing runs before `Engine.start`."""
        return Order(
            name=f"order-{next(self.numbers)}",
            purpose=purpose,
            members=members,
            devices=(self.cluster.devices[device].name,),
            family="family",
            predicted_seconds=0.01 * max(member.until_step for member in members),
        )


class EngineConformance:
    """Laws of an engine. A subclass gives the fixtures `ground`, shared by its tests, and `another`, an engine
    that one test may close."""

    def test_an_order_ends_once_and_frees_its_devices_last(self, ground: Ground) -> None:
        task = ground.task()
        order = ground.order(ground.member(task))
        ground.engine.start(order)
        events = drain(ground.engine, order)
        check_ends(order, events)
        (end,) = ends_of(task, events)
        assert (end.kind, end.step, end.attempt) == ("finished", 5, 1), end

    def test_a_rung_is_not_the_end(self, ground: Ground) -> None:
        task = ground.task()
        order = ground.order(ground.member(task, until_step=2, final=False))
        ground.engine.start(order)
        (end,) = ends_of(task, drain(ground.engine, order))
        assert (end.kind, end.step) == ("waiting", 2)

    def test_one_order_after_another_on_a_device(self, ground: Ground) -> None:
        for _ in range(3):
            order = ground.order(ground.member(ground.task()))
            ground.engine.start(order)
            check_ends(order, drain(ground.engine, order))

    def test_two_orders_at_once_on_two_devices(self, ground: Ground) -> None:
        orders = [ground.order(ground.member(ground.task()), device=device) for device in (0, 1)]
        for order in orders:
            ground.engine.start(order)
        events = drain(ground.engine, *orders)
        for order in orders:
            check_ends(order, [event for event in events if belongs(event, order)])

    def test_stopping_saves_and_another_attempt_goes_on(self, ground: Ground) -> None:
        task = ground.task()
        long = ground.order(ground.member(task, until_step=MANY_STEPS))
        short = ground.order(ground.member(ground.task()), device=1)
        ground.engine.start(long)
        ground.engine.start(short)
        before = drain(ground.engine, short)
        ground.engine.stop(long.name, reason="the test asked")
        (end,) = ends_of(task, before + drain(ground.engine, long))
        assert (end.kind, end.reason) == ("stopped", "the test asked")
        assert 0 <= end.step < MANY_STEPS
        until = end.step + 3
        again = ground.order(ground.member(task, until_step=until, attempt=2))
        ground.engine.start(again)
        (end,) = ends_of(task, drain(ground.engine, again))
        assert (end.kind, end.step, end.attempt) == ("finished", until, 2)

    def test_stopping_without_saving_loses_the_attempt(self, ground: Ground) -> None:
        task = ground.task()
        order = ground.order(ground.member(task, until_step=MANY_STEPS), device=1)
        ground.engine.start(order)
        ground.engine.stop(order.name, reason="the test asked", save=False)
        events = drain(ground.engine, order)
        check_ends(order, events)
        (end,) = ends_of(task, events)
        assert end.kind == "lost"
        assert "the test asked" in end.reason

    def test_stopping_twice_ends_once(self, ground: Ground) -> None:
        order = ground.order(ground.member(ground.task(), until_step=MANY_STEPS))
        ground.engine.start(order)
        ground.engine.stop(order.name, reason="once")
        ground.engine.stop(order.name, reason="twice")
        check_ends(order, drain(ground.engine, order))

    def test_unknown_names_are_ignored(self, ground: Ground) -> None:
        for save in (True, False):
            ground.engine.stop("nobody", reason="none", save=save)

    def test_measuring_gives_a_profile(self, ground: Ground) -> None:
        task = ground.task()
        order = ground.order(ground.member(task), purpose="measure")
        ground.engine.start(order)
        events = drain(ground.engine, order)
        (measured,) = [event for event in events if isinstance(event, TrialMeasured)]
        profile = measured.profile
        assert measured.task == task.identity
        assert (profile.family, profile.count) == ("family", 1)
        assert profile.kind == ground.cluster.devices[0].kind

    def test_fingerprinting_gives_each_task_its_family(self, ground: Ground) -> None:
        tasks = [ground.task(), ground.task()]
        order = ground.order(*map(ground.member, tasks), purpose="fingerprint")
        ground.engine.start(order)
        events = drain(ground.engine, order)
        found = {event.task: event.fingerprint for event in events if isinstance(event, TaskFingerprinted)}
        assert found.keys() == {task.identity for task in tasks}
        assert len({fingerprint.family for fingerprint in found.values()}) == 1

    def test_its_clock_goes_forward(self, ground: Ground) -> None:
        before = ground.engine.now()
        order = ground.order(ground.member(ground.task()))
        ground.engine.start(order)
        events = drain(ground.engine, order)
        after = ground.engine.now()
        assert before <= after
        assert all(before <= event.at_seconds <= after for event in events if belongs(event, order))

    def test_closing_a_busy_engine_twice(self, ground: Ground, another: Engine) -> None:
        another.start(ground.order(ground.member(ground.task(), until_step=MANY_STEPS)))
        another.close()
        another.close()


def drain(engine: Engine, *orders: Order) -> list[Event]:
    """All events until each of these orders is released."""
    events: list[Event] = []
    silent, left = 0, {order.name for order in orders}
    while left:
        found = engine.wait()
        events += found
        left -= {event.placement for event in found if isinstance(event, DevicesReleased)}
        silent = 0 if found else silent + 1
        assert silent < PATIENCE, f"nothing is heard of {sorted(left)}; so far: {events}"
    return events


def belongs(event: Event, order: Order) -> bool:
    """Whether an event came of this order."""
    if isinstance(event, DevicesReleased):
        return event.placement == order.name
    return any((event.task, event.attempt) == (member.task.identity, member.attempt) for member in order.members)


def ends_of(task: Task, events: Iterable[Event]) -> list[Any]:
    """How a task ended, once for each time it did."""
    return [event for event in events if event.task == task.identity and event.kind in ENDS]


def check_ends(order: Order, events: list[Event]) -> None:
    """Every member ended once, and the last word is that the devices are free."""
    ours = [event for event in events if belongs(event, order)]
    for member in order.members:
        assert len(ends_of(member.task, ours)) == 1, ours
    assert [event.kind for event in ours].count("released") == 1
    assert ours[-1].kind == "released"
