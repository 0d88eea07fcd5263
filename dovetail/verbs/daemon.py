"""The verb behind `dovetail daemon`: a controller that stays."""

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dovetail.control import Decider, Settings, standing
from dovetail.control.deciding.sharing import Sharing
from dovetail.control.renting import Renting, RentingMaker, RentingTerms
from dovetail.describe.markets import MarketSource, check_fresh
from dovetail.engines import Engine
from dovetail.engines.provisioning import CommandProvisioner, Provisioner
from dovetail.planning.share.policies import POLICIES
from dovetail.planning.share.policies.blindness import Policy
from dovetail.store import Store
from dovetail.verbs.amendments import check_techniques, limit_cluster
from dovetail.verbs.choices import choose
from dovetail.verbs.controller import ensure_directory, open_controller
from dovetail.verbs.engine_places import MakeEngine, open_place
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    Entity,
    Objective,
    Workload,
    parse_allow,
    parse_device_memory,
    parse_techniques,
)
from dovetail.vocabulary.markets import RentalTerms


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
    allow: str | Iterable[str] = (),
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
    market: str | None = None,
    provision: str | Provisioner | None = None,
    most: str | None = None,
    move_seconds: float = 600.0,
    lost_seconds: float = 120.0,
    every_seconds: float = 60.0,
    port: int | None = None,
    progress: bool = True,
    listening: Callable[[str], None] = lambda where: None,
) -> None:
    """Take tasks on as they are submitted to this store, until a stop is asked for. Started again, goes on.

    Devices are shared by `policy`, a name or a function from a problem to an allocation, in rounds of `round_seconds`,
    where it asks for that between the entities that they are `shared_by`; one that is not among these weighs 1. With an
    `objective`, by one schedule for all that is there, made anew as things change, in which what runs does not leave
    for what comes. `techniques`, `device_memory` and `allow` are as in `dt.workload`, for all tasks that come. `engine`
    is where they run, by name, or what makes that, at `address` where it is Ray's. With a `market` (prices over time)
    and somebody to `provision` nodes (a command, or a `Provisioner`), these are rented, at `most` so many of each kind
    ('4xv100+8xk80'), by the objective 'spend:deadline=8h', which is asked about every so many seconds, and given back.
    `listening` is told where it takes commands, once it does.

    >>> def weekend(problem):  # a policy of one's own, here one that stands on another
    ...     return POLICIES["max_min_fairness"](problem)
    >>> run_daemon(policy=weekend, round_seconds=0)
    Traceback (most recent call last):
    dovetail.vocabulary.errors.InvalidWorkload: a round must last longer than 0 s, got 0.
    """
    template = check_techniques(
        Workload(
            name="daemon",
            tasks=(),
            open=True,
            # What is rented is paid for, used or not: it is to be over soon.
            objective="makespan" if market else str(Objective.parse(objective or "weighted")),
            techniques=parse_techniques(techniques),
            device_memory_bytes=parse_device_memory(device_memory),
            allow=parse_allow(allow),
        )
    )
    renting = _renting(market, provision, objective, most, move_seconds, lost_seconds, every_seconds, engine)
    decider = sharing(policy, round_seconds, entities=shared_by) if objective is None else None

    def take_up(opened: Store) -> Workload:
        return dataclasses.replace(template, tasks=standing(opened).tasks)

    home = ensure_directory(Path(store))
    with contextlib.ExitStack() as stack:
        here, make = stack.enter_context(open_place(engine, address=address, programs=[], home=home))
        controller = stack.enter_context(
            open_controller(
                take_up,
                cluster=limit_cluster(cluster or here, template),
                home=home,
                settings=settings or Settings(),
                progress=progress,
                decider=decider,
                make=make,
                renting=renting,
                port=port,
                listening=listening,
            )
        )
        controller.reconcile()
        controller.run()


def _renting(
    market: str | None,
    provision: str | Provisioner | None,
    objective: str | None,
    most: str | None,
    move_seconds: float,
    lost_seconds: float,
    every_seconds: float,
    engine: str | Engine | MakeEngine,
) -> RentingMaker | None:
    """What rents, where that was asked for."""
    if market is None and provision is None:
        return None
    wanted = Objective.parse(objective or "weighted")
    if market is None or provision is None or wanted.name != "spend" or most is None or engine == "local":
        raise DovetailError(
            "to rent nodes a daemon must be told prices (--market prices.csv), who provides them (--provision "
            "./nodes.sh), how many at most (--cluster 4xv100), by when (--objective spend:deadline=8h) and where they "
            "join (--engine ray); one of these is missing."
        )
    source = MarketSource(market)
    history = source.ask()
    check_fresh(history, now=time.time())
    counts = _most(most, {each.kind for each in history.markets})
    terms = RentingTerms(
        most=counts,
        rental=RentalTerms(
            deadline_seconds=wanted.deadline_seconds, move_seconds=move_seconds, lost_seconds=lost_seconds
        ),
        period_seconds=every_seconds,
    )
    provisioner = provision if isinstance(provision, Provisioner) else _provisioner(provision)
    return functools.partial(Renting, market=source, provisioner=provisioner, terms=terms)


def _provisioner(text: str) -> Provisioner:
    """Ray's own autoscaler by its name, or a command."""
    if text != "autoscaler":
        return CommandProvisioner(text)
    from dovetail.engines.ray.autoscaler import AutoscalerProvisioner

    return AutoscalerProvisioner()


def _most(text: str, kinds: set[str]) -> dict[str, int]:
    """How many devices of each kind may be rented.

    >>> _most("4xv100+8xk80", {"v100", "k80", "t4"})
    {'v100': 4, 'k80': 8}
    """
    parts = [re.fullmatch(r"(\d+)x(.+)", part.strip()) for part in text.split("+")]
    found = {part[2]: int(part[1]) for part in parts if part}
    if not all(parts) or not found.keys() <= kinds:
        raise DovetailError(
            f"--cluster must say how many devices to rent of kinds that have a price, {', '.join(sorted(kinds))}, as "
            f"in 4xv100+8xk80; got {text!r}."
        )
    return found


def sharing(policy: str | Policy, round_seconds: float, *, entities: tuple[Entity, ...] = ()) -> Decider:
    """The way of deciding by a policy, or by the one of that name.

    >>> sharing("max_min_fairness", 60.0).round_seconds
    60.0
    """
    return Sharing(
        policy=choose("policy", policy, POLICIES), round_seconds=round_seconds, prompt=True, entities=entities
    )
