"""The real loop on the simulated engine, with faults that a test asks for."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import pytest

from dovetail.control import Controller, Decider, Settings
from dovetail.engines import Order, SimulatedEngine, World
from dovetail.planning import PLANNERS
from dovetail.planning.schedule.improve import IMPROVE_SECONDS
from dovetail.store import Store
from dovetail.vocabulary import (
    Cluster,
    Event,
    Fingerprint,
    Halving,
    Kind,
    Placement,
    Profile,
    Program,
    Schedule,
    Stop,
    Task,
    Workload,
)
from dovetail.vocabulary.events import AttemptLost, CheckpointSaved, TaskFailed

CPU = Kind(name="sim", processor="cpu")


@contextlib.contextmanager
def hasty_planning() -> Iterator[None]:
    """Plans with a tenth of the small changes: for laws that hold of any plan, over dozens of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dovetail.planning.schedule.objective_lists.IMPROVE_SECONDS", IMPROVE_SECONDS / 10)
        yield


def cluster(devices: int = 2, *, nodes: int = 1, memory_bytes: int = 64 << 30) -> Cluster:
    return Cluster.uniform(CPU, nodes=nodes, devices_per_node=devices, memory_bytes=memory_bytes)


def task(name: str, *, steps: int = 100, family: str = "f", source: str = "", **parameters: object) -> Task:
    """A task whose family is the function's name."""
    program = Program(reference=f"a.py:{family}", source=source)
    return Task(name=name, program=program, parameters=parameters, stop=Stop(steps=steps))


def workload(*tasks: Task, halving: Halving | None = None) -> Workload:
    return Workload(name="simulated", tasks=tasks, halving=halving)


def world(
    *,
    seconds: Callable[[str], float] = lambda family: 1.0,
    peak_bytes: Callable[[str], int] = lambda family: 1 << 30,
    slowness: Callable[[Order], float] = lambda order: 1.0,
) -> World:
    """Steps of `seconds(family)` on one device, hardly less on two: tasks run side by side."""
    return World(
        fingerprint=lambda task: Fingerprint(family=task.program.function),
        profile=lambda family, kind, count: Profile(
            family=family,
            kind=kind,
            count=count,
            step_seconds=seconds(family) / count**0.1,
            peak_bytes=peak_bytes(family),
            metrics=("score",),
        ),
        slowness=slowness,
    )


Outcome = Callable[[str, int, int], int | str | None]


def ends(name: str, attempt: int, until: int) -> int | str | None:
    """The outcome without a fault."""
    return None


@dataclasses.dataclass
class Faults:
    """What goes wrong. `outcome(task, attempt, until_step)` gives None for an attempt that reaches its end, a step
    for one that is lost after saving there, or the reason for which it fails. `score(task, step)` is its metric;
    `strangers` are events that come along with each end; `killed` names orders whose workers die while measuring, which
    they do by themselves where `ending` says how."""

    outcome: Outcome = ends
    score: Callable[[str, int], float] = lambda name, step: 0.0
    strangers: Callable[[Event], list[Event]] = lambda event: []
    killed: Callable[[Order], bool] = lambda order: False
    ending: str = ""


class RiggedEngine(SimulatedEngine):
    """The simulated engine with faults."""

    def __init__(
        self,
        world: World,
        faults: Faults | None = None,
        *,
        kind_of: Callable[[str], str] = lambda device: CPU.name,
    ) -> None:
        super().__init__(world, kind_of=kind_of)
        self.orders: list[Order] = []
        self._faults = faults or Faults()
        self._known: dict[str, Task] = {}
        self._doomed: set[str] = set()

    def go_on_after(self, store: Store) -> None:
        """Let the clock of this run begin where that of the run before ended."""
        self._now = max((event.at_seconds for _, event in store.events()), default=0.0)

    def start(self, order: Order) -> None:
        self.orders.append(order)
        self._known |= {member.task.identity: member.task for member in order.members}
        if order.purpose != "train" and self._faults.killed(order):
            self._doomed |= {member.task.identity for member in order.members}
        super().start(order)

    def wait(self) -> list[Event]:
        # Saves are this engine's own to report: a rigged outcome decides which there are.
        honest = [event for event in super().wait() if event.kind != "saved"]
        return [event for found in honest for event in self._rigged(found)]

    def _rigged(self, event: Event) -> Iterator[Event]:
        if event.kind in ("fingerprinted", "measured") and event.task in self._doomed:
            self._doomed.discard(event.task)
            yield same_moment(AttemptLost, event, reason="its worker died", ending=self._faults.ending)
        elif event.kind in ("finished", "waiting") and event.attempt:
            yield from self._faults.strangers(event)
            yield from self._ended(event)
        elif event.kind == "stopped" and event.attempt:
            yield _saved(event, event.step)
            yield event
        else:
            yield event

    def _ended(self, event: Event) -> Iterator[Event]:
        name, step = self._known[event.task].name, event.step
        outcome = self._faults.outcome(name, event.attempt, step)
        if isinstance(outcome, str):
            yield same_moment(TaskFailed, event, reason=outcome)
        elif isinstance(outcome, int):
            if outcome:
                yield _saved(event, outcome)
            yield same_moment(AttemptLost, event, reason="its worker died", log="the tail")
        else:
            yield _saved(event, step)
            yield dataclasses.replace(event, metrics={"score": self._faults.score(name, step)})


def _saved(event: Event, step: int) -> Event:
    return same_moment(CheckpointSaved, event, step=step)


def same_moment(kind: type[Event], event: Event, **fields: object) -> Event:
    """Another event of the same attempt at the same time."""
    return kind(task=event.task, attempt=event.attempt, at_seconds=event.at_seconds, **fields)


def controller(
    what: Workload,
    store: Store,
    *,
    on: Cluster | None = None,
    engine: RiggedEngine | None = None,
    observe: Callable[[Controller], None] = lambda controller: None,
    retries: int = 3,
    decider: Decider | None = None,
) -> Controller:
    engine = engine or RiggedEngine(world())
    engine.go_on_after(store)
    return Controller(
        what,
        cluster=on or cluster(),
        store=store,
        engine=engine,
        settings=Settings(retries=retries),
        planner=PLANNERS["list"],  # hours of a simulation would be worth minutes of planning
        decider=decider,
        observe=observe,
    )


def carry_out(found: Controller) -> Controller:
    """The whole way, as `dt.run` goes it."""
    found.reconcile()
    found.run()
    return found


def statuses(found: Controller) -> dict[str, str]:
    return {found.tasks[identity].name: one.status for identity, one in found.progress.items()}


def events_of(store: Store, kind: str, task: Task | None = None) -> list[Event]:
    return [event for _, event in store.events(task=task.identity if task else None) if event.kind == kind]


def happened(store: Store) -> Schedule:
    """The schedule that really ran, from the events alone."""
    started, placements = {}, []
    for _, event in store.events():
        if event.kind == "started":
            started[event.placement] = event
        elif event.kind == "released" and (start := started.get(event.placement)):
            placements.append(
                Placement(
                    tasks=(start.task,),
                    steps=(start.until,),
                    option=start.option,
                    devices=tuple(start.devices),
                    start_seconds=start.at_seconds,
                    duration_seconds=event.at_seconds - start.at_seconds,
                )
            )
    return Schedule(placements=tuple(placements))
