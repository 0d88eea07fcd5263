"""The verb behind `dovetail daemon`: a controller that stays."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from dovetail.control import Decider, Settings, standing
from dovetail.control.deciding.sharing import Sharing
from dovetail.engines import Engine, LocalEngine, detect
from dovetail.planning.share.policies import POLICIES
from dovetail.planning.share.policies.blindness import Policy
from dovetail.store import Store
from dovetail.verbs.amendments import check_techniques, limit_cluster
from dovetail.verbs.choices import choose
from dovetail.verbs.controller import open_controller
from dovetail.verbs.engine_places import MakeEngine
from dovetail.vocabulary import Cluster, Entity, Objective, Workload, parse_device_memory, parse_techniques


def run_daemon(
    *,
    cluster: Cluster | None = None,
    store: str | Path = ".dovetail",
    settings: Settings | None = None,
    policy: str | Policy = "max_min_fairness",
    shared_by: tuple[Entity, ...] = (),
    round_seconds: float = 60.0,
    objective: str | None = None,
    techniques: str | Iterable[str] = (),
    device_memory: str | int | None = None,
    engine: Engine | MakeEngine = LocalEngine,
    port: int | None = None,
    progress: bool = True,
    listening: Callable[[str], None] = lambda where: None,
) -> None:
    """Take tasks on as they are submitted to this store, until a stop is asked for. Started again, goes on.

    Devices are shared by `policy`, a name or a function from a problem to an allocation, in rounds of `round_seconds`,
    where it asks for that between the entities that they are `shared_by`; one that is not among these weighs 1. With an
    `objective`, by one schedule for all that is there, made anew as things change, in which what runs does not leave
    for what comes. `techniques` and `device_memory` are as in `dt.workload`, for all tasks that come. `engine` is where
    they run, or what makes that. `listening` is told where it takes commands, once it does.
    """
    template = check_techniques(
        Workload(
            name="daemon",
            tasks=(),
            open=True,
            objective=str(Objective.parse(objective or "weighted")),
            techniques=parse_techniques(techniques),
            device_memory_bytes=parse_device_memory(device_memory),
        )
    )
    decider = sharing(policy, round_seconds, entities=shared_by) if objective is None else None

    def take_up(opened: Store) -> Workload:
        return dataclasses.replace(template, tasks=standing(opened).tasks)

    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(
            open_controller(
                take_up,
                cluster=limit_cluster(cluster or detect(), template),
                home=Path(store),
                settings=settings or Settings(),
                progress=progress,
                decider=decider,
                make=(lambda *_, **__: engine) if isinstance(engine, Engine) else engine,
                port=port,
                listening=listening,
            )
        )
        controller.reconcile()
        controller.run()


def sharing(policy: str | Policy, round_seconds: float, *, entities: tuple[Entity, ...] = ()) -> Decider:
    """The way of deciding by a policy, or by the one of that name.

    >>> sharing("max_min_fairness", 60.0).round_seconds
    60.0
    """
    return Sharing(
        policy=choose("policy", policy, POLICIES), round_seconds=round_seconds, prompt=True, entities=entities
    )
