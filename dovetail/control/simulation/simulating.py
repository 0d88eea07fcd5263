"""A stream of tasks on a shared cluster, simulated: the loop, on the engine with a virtual clock."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dovetail.control.deciding.sharing import Sharing
from dovetail.control.loop import Controller
from dovetail.control.settings import Settings
from dovetail.control.simulation.outcome import Outcome, outcome_of
from dovetail.control.state.snapshot import Offers
from dovetail.describe.traces import Arrival
from dovetail.engines import Order, Outage, SimulatedEngine, World
from dovetail.planning.fitting import are_there
from dovetail.planning.share.policies import Policy, equal_rates
from dovetail.store import Store
from dovetail.vocabulary import (
    Cluster,
    Entity,
    Event,
    Fingerprint,
    InvalidWorkload,
    NoFeasiblePlan,
    Option,
    Program,
    Rejection,
    Stop,
    Task,
    Workload,
)
from dovetail.vocabulary.events import AttemptLost, ClusterShared, TaskFingerprinted, TaskSubmitted

_SHOWN = 5
# Breaking is the world's doing here, not the task's: it never has to give up.
ALWAYS = 1 << 60
_MOMENTS = 9
_PROGRAM = Program(reference="trace:task")


def simulate(
    arrivals: Sequence[Arrival],
    *,
    options: Iterable[Option],
    cluster: Cluster,
    policy: Policy,
    round_seconds: float = 360.0,
    least_seconds_between: float = 0.0,
    load_seconds: float = 0.0,
    save_seconds: float = 0.0,
    outages: Sequence[Outage] = (),
    entities: Sequence[Entity] = (),
    blind: bool = False,
    checked: bool = False,
    observe: Callable[[Controller], None] = lambda controller: None,
) -> Outcome:
    """What comes of these arrivals where a policy shares the cluster in rounds.

    `options` say how fast each family is; policies are told so, unless they are `blind` to kinds. A task loses
    `save_seconds` when it leaves devices and `load_seconds` when it starts on some. With `checked`, every round passes
    `check`. Entities that tasks run for and that are not among `entities` weigh 1.

    >>> from dovetail.planning.share.policies import POLICIES
    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="v100", processor="cuda"))
    >>> option = Option(families=("f",), technique="resident", kind="v100", count=1, step_seconds=(1.0,))
    >>> two = [Arrival(task=name, family="f", steps=720, at_seconds=0.0) for name in ("a", "b")]
    >>> found = simulate(two, options=[option], cluster=cluster, policy=POLICIES["max_min_fairness"])
    >>> sorted(found.seconds.values())
    [720.0, 1440.0]
    """
    true = are_there(options, cluster)
    _refuse(arrivals, true, cluster)
    told = [lie for lie, _ in equal_rates(true)] if blind else true
    tasks = {arrival.task: arriving_task(arrival) for arrival in arrivals}
    world = make_world(arrivals, tasks, true, cluster, blind=blind)
    world = dataclasses.replace(world, load_seconds=load_seconds, save_seconds=save_seconds, outages=outages)
    sharing = Sharing(
        policy=policy,
        round_seconds=round_seconds,
        least_seconds_between=least_seconds_between,
        checked=checked,
        entities=_entities(arrivals, entities),
    )
    kinds = {device.name: device.kind for device in cluster.devices}
    began = time.process_time()
    engine = SimulatedEngine(world, kind_of=kinds.__getitem__)
    with contextlib.closing(_Forgetful()) as store:
        controller = Controller(
            Workload(name="trace", tasks=tuple(tasks.values())),
            cluster=cluster,
            store=store,
            engine=engine,
            settings=Settings(retries=ALWAYS),
            decider=sharing,
            offers=Offers(told),
            observe=StallGuard(engine, observe),
        )
        controller.run()
    return outcome_of(
        arrivals,
        controller,
        cluster=cluster,
        options=true,
        cpu_seconds=time.process_time() - began,
        allocations=store.counts["shared"],
        lost=store.counts["lost"],
    )


class StallGuard:
    """Ends a simulation in which nothing will ever happen again though tasks are left: their devices are gone."""

    def __init__(self, engine: SimulatedEngine, observe: Callable[[Controller], None]) -> None:
        self._engine, self._observe = engine, observe
        self._idle = 0

    def __call__(self, controller: Controller) -> None:
        self._idle = self._idle + 1 if self._engine.is_idle and controller.left else 0
        # Between an end and what is decided upon it the calendar may be empty for a moment.
        if self._idle > _MOMENTS:
            left = [controller.tasks[task].name for task, one in controller.progress.items() if one.status == "pending"]
            raise NoFeasiblePlan(
                f"tasks must have devices to run on; {_some(left)} left when the last ones that fit broke for good."
            )
        self._observe(controller)


class _Forgetful(Store):
    """Keeps nothing but counts: where each task ran is known to the controller, and nobody resumes a simulation.
    Writing it all down would take longer than the rest of the loop."""

    def __init__(self) -> None:
        super().__init__(None, write=True)
        self.counts: Counter[str] = Counter()

    def add(self, *, events: Iterable[Event] = (), **others: Any) -> None:
        """Count the events that are asked for."""
        for event in events:
            if isinstance(event, ClusterShared | AttemptLost):
                self.counts[event.kind] += 1


def _entities(arrivals: Sequence[Arrival], given: Sequence[Entity]) -> tuple[Entity, ...]:
    known = {entity.name: entity for entity in given}
    strange = sorted(known.keys() - {arrival.entity for arrival in arrivals})
    if strange:
        raise InvalidWorkload(f"an entity must have tasks in the trace; {_some(strange)} without.")
    named = dict.fromkeys(arrival.entity for arrival in arrivals if arrival.entity)
    return tuple(known.get(name) or Entity(name=name) for name in named)


def arriving_task(arrival: Arrival) -> Task:
    """The task that arrives."""
    return Task(name=arrival.task, program=_PROGRAM, stop=Stop(steps=arrival.steps))


def make_world(
    arrivals: Sequence[Arrival],
    tasks: dict[str, Task],
    options: Sequence[Option],
    cluster: Cluster,
    *,
    blind: bool,
) -> World:
    """A world in which these tasks arrive and run as fast as these options say."""
    families = {tasks[arrival.task].identity: arrival.family for arrival in arrivals}
    kinds = {device.name: device.kind for device in cluster.devices}
    true = {(option.families, option.technique, option.kind, option.count): option.step_seconds for option in options}

    def paces(order: Order) -> tuple[float, ...]:
        gang = tuple([families[member.task.identity] for member in order.members])
        return true[gang, order.technique, kinds[order.devices[0]], len(order.devices)]

    def profile(family: str, kind: str, count: int) -> Rejection:
        raise AssertionError("a simulation is given its options; it measures nothing")

    return World(
        fingerprint=lambda task: Fingerprint(family=families[task.identity]),
        profile=profile,
        paces=paces,
        happenings=[event for arrival in arrivals for event in _arrives(arrival, tasks[arrival.task])],
        reports=blind,
    )


def _arrives(arrival: Arrival, task: Task) -> list[Event]:
    at, identity = arrival.at_seconds, task.identity
    return [
        TaskSubmitted(
            task=identity,
            at_seconds=at,
            priority=arrival.weight,
            deadline_seconds=at + arrival.deadline_seconds,
            entity=arrival.entity,
        ),
        TaskFingerprinted(task=identity, at_seconds=at, fingerprint=Fingerprint(family=arrival.family)),
    ]


def _refuse(arrivals: Sequence[Arrival], options: Sequence[Option], cluster: Cluster) -> None:
    if not arrivals:
        raise InvalidWorkload("a trace must have at least one task; it has none.")
    twice = sorted(name for name, times in Counter(each.task for each in arrivals).items() if times > 1)
    if twice:
        raise InvalidWorkload(f"tasks must have names of their own; {_some(twice)} there more than once.")
    able = {option.families[0] for option in options if len(option.families) == 1}
    lost = [arrival for arrival in arrivals if arrival.family not in able]
    if lost:
        kinds = ", ".join(f"{count} {kind.name}" for kind, count in cluster.counts() if count)
        raise NoFeasiblePlan(
            f"every task must have an option alone with a rate above 0 on some node of the cluster ({kinds}); "
            f"{_some([each.task for each in lost])} without: of family "
            f"{', '.join(map(repr, sorted({each.family for each in lost})[:_SHOWN]))}."
        )
    late = [each.task for each in arrivals if not each.deadline_seconds > 0]
    if late:
        raise InvalidWorkload(f"a deadline must be later than the arrival; that of {_some(late)} past already.")
    bad = [each.task for each in arrivals if not (0 <= each.at_seconds < math.inf and each.weight > 0)]
    if bad:
        raise InvalidWorkload(
            f"tasks must arrive at a time of at least 0 s with a weight above 0; {_some(bad)} not so."
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more} {'is' if len(names) == 1 else 'are'}"
