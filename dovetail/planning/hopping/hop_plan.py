"""From tasks whose data lies on nodes to a schedule of visits, next to whatever else is to be placed.

Ways are weighed by their predicted ends: to visit shards only where they lie, or also from elsewhere where they can be
read from there, at the price of the bytes, for each visit or, where a copy may be kept, once for each node; or to train
copies of each model on all these nodes at once (`replicating`). Tasks without shards are planned by the given planner,
behind the visits.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from dovetail.planning.hopping.open_shop import HopLink, OpenShop, ShardCopy, ShopDevice, Stay, Tour, Tours
from dovetail.planning.hopping.replicating import Replicating, weigh
from dovetail.planning.hopping.shop_checker import check_tours
from dovetail.planning.hopping.shop_planner import plan_tours
from dovetail.planning.links import network_latency, network_rate
from dovetail.planning.problem import Problem, ShardTour
from dovetail.vocabulary import Cluster, Device, Option, Placement, Plan, Schedule, TaskId

TECHNIQUE = "hop"

Planner = Callable[[Problem], Plan]
_Visits = dict[tuple[TaskId, int, str], tuple[str, int]]


def plan_with_shards(problem: Problem, planner: Planner) -> Plan:
    """The plan of `planner`, with visits for the tasks whose data lies on nodes.

    >>> from dovetail.vocabulary import Kind
    >>> empty = Problem(cluster=Cluster.uniform(Kind(name="cpu", processor="cpu")), families=(), options=())
    >>> plan_with_shards(empty, lambda problem: Plan(schedule=Schedule(placements=()))).gap
    0.0
    """
    options = _options(problem)
    # What cannot be placed yet, since it is still to be measured, is left for a later plan.
    tours = {task: tour for task, tour in problem.tours.items() if _can_be_made(tour, options[task], problem.cluster)}
    if not tours:
        return planner(_others(problem))
    visits, found, ways = _best(problem, tours, options)
    placements = tuple(_placement(stay, visits, options[stay.task], problem.cluster) for stay in found.stays)
    hopping = _with_others(problem, planner, Schedule(placements=placements), found.bound_seconds)
    copies = weigh(problem, tours, options, link=link_between_nodes(problem.cluster), planner=planner)
    verdict = _verdict(found, ways, copies)
    if copies.plan is not None and copies.ends(copies.plan) < copies.ends(hopping):
        line = f"{verdict}; so each is trained on several nodes at once"
        return dataclasses.replace(copies.plan, explanation=(line, *copies.plan.explanation))
    reason = (copies.reason,) if copies.seconds < found.makespan_seconds and copies.reason else ()
    return dataclasses.replace(hopping, explanation=(verdict, *reason, *hopping.explanation))


def _with_others(problem: Problem, planner: Planner, visits: Schedule, bound_seconds: float) -> Plan:
    """Visits, and behind them the tasks that make none."""
    rest = _others(problem)
    if not rest.families:
        return Plan(schedule=visits, bound_seconds=bound_seconds, rejections=rest.rejections)
    other = planner(dataclasses.replace(rest, running=_until_over(rest.running, visits.placements)))
    assert other.schedule is not None
    return dataclasses.replace(
        other,
        schedule=Schedule(placements=(*visits.placements, *other.schedule.placements)),
        bound_seconds=max(other.bound_seconds, bound_seconds),
    )


def _until_over(running: Iterable[Placement], visits: Iterable[Placement]) -> tuple[Placement, ...]:
    """What runs and what is to visit, as others see it who are planned behind: a device is taken until its last visit
    is over."""
    last = {visit.devices[0]: visit for visit in sorted(visits, key=lambda visit: visit.end_seconds)}
    found = []
    for each in running:
        held = [last.pop(device).end_seconds for device in each.devices if device in last]
        found.append(dataclasses.replace(each, duration_seconds=max(each.end_seconds, *held, 0.0) - each.start_seconds))
    whole = [dataclasses.replace(each, start_seconds=0.0, duration_seconds=each.end_seconds) for each in last.values()]
    return (*found, *whole)


def _others(problem: Problem) -> Problem:
    families = tuple(
        dataclasses.replace(family, members=tuple(each for each in family.members if each.task not in problem.tours))
        for family in problem.families
    )
    return dataclasses.replace(problem, families=tuple(each for each in families if each.members))


def unvisitable(problem: Problem) -> dict[TaskId, str]:
    """For each task that is to visit a shard where nothing fits it, why.

    >>> from dovetail.vocabulary import Kind
    >>> unvisitable(Problem(cluster=Cluster.uniform(Kind(name="cpu", processor="cpu")), families=(), options=()))
    {}
    """
    if not problem.tours:
        return {}
    options = _options(problem)
    waiting = {member.task: family.measured_as for family in problem.families for member in family.members}
    found = {}
    for task, tour in problem.tours.items():
        if task in waiting and tour.epochs and not _can_be_made(tour, options[task], problem.cluster):
            reasons = [each.reason for each in problem.rejections if waiting[task] in each.families]
            why = "; ".join(dict.fromkeys(reasons)) or "none was measured with one device"
            found[task] = f"no option fits it on every node that has one of its shards: {why}"
    return found


def _can_be_made(tour: ShardTour, options: Mapping[str, Option], cluster: Cluster) -> bool:
    able = {device.node for device in cluster.devices if device.kind in options}
    homes = [*tour.homes.values(), *(tour.evaluation.homes.values() if tour.evaluation is not None else ())]
    return bool(tour.epochs) and all(able.intersection(each) for each in homes)


def _options(problem: Problem) -> dict[TaskId, dict[str, Option]]:
    """By kind, the option that each task's visits have: resident on one device."""
    family_of = {member.task: family.name for family in problem.families for member in family.members}
    single: dict[str, dict[str, Option]] = {}
    measured = {family.name: family.measured_as for family in problem.families}
    unfit = {(each.families, each.kind) for each in problem.rejections if each.technique == TECHNIQUE}
    for option in problem.options:
        is_single = option.technique == "resident" and option.count == 1 and len(option.families) == 1
        family = measured.get(option.families[0], option.families[0])
        if is_single and ((family,), option.kind) not in unfit:
            known = single.setdefault(option.families[0], {}).setdefault(option.kind, option)
            if option.step_seconds < known.step_seconds:
                single[option.families[0]][option.kind] = option
    found = {}
    for task, tour in problem.tours.items():
        own = {tour.option.kind: tour.option} if tour.option is not None else single.get(family_of.get(task, ""), {})
        if tour.option is None and tour.evaluation is not None:
            own = {
                kind: _without_evaluation(each, tour.evaluation.step_seconds.get(kind, 0.0))
                for kind, each in own.items()
            }
        found[task] = {kind: dataclasses.replace(each, technique=TECHNIQUE) for kind, each in own.items()}
    return found


def _without_evaluation(option: Option, seconds: float) -> Option:
    """An option whose steps have no evaluation in them, which has visits of its own."""
    return dataclasses.replace(option, step_seconds=tuple(each - seconds for each in option.step_seconds))


def _best(
    problem: Problem, tours: Mapping[TaskId, ShardTour], options: Mapping[TaskId, Mapping[str, Option]]
) -> tuple[_Visits, Tours, dict[str, float]]:
    """The visits, the better plan of them, and when each way would end."""
    link, devices = link_between_nodes(problem.cluster), list(_devices(problem, options))
    free = {device.name: device.free_seconds for device in devices}
    ways: dict[str, float] = {}
    best: tuple[_Visits, Tours] | None = None
    reads = [False, True] if any(tour.read_seconds for tour in tours.values()) else [False]
    for afar in reads:
        visits: _Visits = {}
        planned = tuple(
            _tour(task, tour, options[task], problem.cluster, free, visits, afar=afar) for task, tour in tours.items()
        )
        if not all(where for tour in planned for where in tour.visit_seconds.values()):
            continue
        shop = OpenShop(devices=tuple(devices), tours=planned, link=link, copies=_copies(tours) if afar else {})
        found = plan_tours(shop)
        check_tours(found, shop)
        elsewhere = "copying shards once as well" if shop.copies else "reading from afar as well"
        ways[elsewhere if afar else "hopping"] = found.makespan_seconds
        if best is None or found.makespan_seconds < best[1].makespan_seconds:
            best = visits, found
    assert best is not None, "a shard that no device can visit is refused before"
    return *best, ways


def _copies(tours: Mapping[TaskId, ShardTour]) -> dict[str, ShardCopy]:
    """What a node takes to have a copy of each shard that may have one."""
    return {
        source: ShardCopy(seconds=tour.read_seconds[shard], nodes=frozenset(tour.homes[shard]))
        for tour in tours.values()
        for shard, source in tour.copied.items()
    }


def _devices(problem: Problem, options: Mapping[TaskId, Mapping[str, Option]]) -> Iterator[ShopDevice]:
    """The devices that visits may have: of each node as many as hold the largest option side by side."""
    free: dict[str, float] = {}
    for placement in problem.running:
        for device in placement.devices:
            free[device] = max(free.get(device, 0.0), placement.end_seconds)
    largest = max((each.host_bytes for own in options.values() for each in own.values()), default=0)
    for node in problem.cluster.nodes:
        most = node.memory_bytes // largest if largest else len(problem.cluster.devices)
        here = [device for device in problem.cluster.devices if device.node == node.name][: max(1, most)]
        yield from (ShopDevice(name=each.name, node=node.name, free_seconds=free.get(each.name, 0.0)) for each in here)


def _tour(
    task: TaskId,
    tour: ShardTour,
    options: Mapping[str, Option],
    cluster: Cluster,
    free: Mapping[str, float],
    visits: _Visits,
    *,
    afar: bool,
) -> Tour:
    """One task's tour. Visits that are not of a whole shard have names of their own, as they take another time."""
    epochs: list[tuple[str, ...]] = []
    seconds: dict[str, dict[str, float]] = {}
    copied: dict[str, str] = {}
    for number, epoch in enumerate(tour.epochs):
        names = []
        for shard, steps in epoch:
            name = f"{shard} ({steps} steps)" if steps else f"{shard} (evaluation)"
            names.append(name)
            visits[task, number, name] = (shard, steps)
            if name not in seconds:
                seconds[name] = dict(_where(tour, shard, steps, options, cluster, free, afar=afar))
                if afar and steps and shard in tour.copied:
                    copied[name] = tour.copied[shard]
        epochs.append(tuple(names))
    return Tour(
        task=task,
        epochs=tuple(epochs),
        visit_seconds=seconds,
        is_ordered=tour.is_ordered,
        state_bytes=tour.state_bytes,
        at=tour.at,
        ready_seconds=tour.ready_seconds,
        copied=copied,
    )


def _where(
    tour: ShardTour,
    shard: str,
    steps: int,
    options: Mapping[str, Option],
    cluster: Cluster,
    free: Mapping[str, float],
    *,
    afar: bool,
) -> Iterator[tuple[str, float]]:
    evaluation = None if steps else tour.evaluation
    homes = tour.homes[shard] if evaluation is None else evaluation.homes[shard]
    for device in cluster.devices:
        if device.name not in free or device.kind not in options:
            continue
        option = options[device.kind]
        if evaluation is not None:
            whole = evaluation.seconds_on(shard, kind=device.kind, step_seconds=option.step_seconds[0])
            seconds = option.start_seconds + whole
        else:
            seconds = option.seconds((steps,))
        if device.node in homes:
            yield device.name, seconds
        elif afar and evaluation is None and shard in tour.read_seconds:
            reads = 0.0 if shard in tour.copied else tour.read_seconds[shard]
            yield device.name, seconds + reads


def _placement(stay: Stay, visits: _Visits, options: Mapping[str, Option], cluster: Cluster) -> Placement:
    device: Device = cluster.device(stay.device)
    shard, steps = visits[stay.task, stay.epoch, stay.shard]
    return Placement(
        tasks=(stay.task,),
        steps=(steps,),
        option=options[device.kind],
        devices=(stay.device,),
        start_seconds=stay.start_seconds,
        duration_seconds=stay.duration_seconds,
        shard=shard,
    )


def orders_of(plan: Plan, problem: Problem) -> dict[TaskId, tuple[tuple[str, ...], ...]]:
    """The shards of each epoch in the order of a plan's visits, of the tasks whose order was the planner's to choose.

    >>> from dovetail.vocabulary import Kind
    >>> empty = Problem(cluster=Cluster.uniform(Kind(name="cpu", processor="cpu")), families=(), options=())
    >>> orders_of(Plan(schedule=Schedule(placements=())), empty)
    {}
    """
    assert plan.schedule is not None
    visited: dict[TaskId, list[str]] = {}
    for placement in sorted(plan.schedule.placements, key=lambda placement: placement.start_seconds):
        if placement.shard and any(placement.steps):
            visited.setdefault(placement.tasks[0], []).append(placement.shard)
    found: dict[TaskId, tuple[tuple[str, ...], ...]] = {}
    for task, names in visited.items():
        tour = problem.tours[task]
        if not tour.is_ordered:
            shards = iter(names)
            found[task] = tuple(tuple(itertools.islice(shards, len(epoch))) for epoch in tour.trainings)
    return found


def _verdict(found: Tours, ways: Mapping[str, float], copies: Replicating) -> str:
    ends = [f"{way} ends in {seconds:.1f} s" for way, seconds in ways.items()]
    if copies.nodes > 1:
        ends.append(f"copies on {copies.nodes} nodes at once in {copies.seconds:.1f} s")
    visits = f"{len(found.stays)} visits of shards: {', '.join(ends)}"
    return f"{visits}; at least {found.bound_seconds:.1f} s, gap {found.gap:.1%}"


def link_between_nodes(cluster: Cluster) -> HopLink:
    """What carries a task's state between two nodes: as slow as the slowest link that was measured, or as is assumed.

    >>> from dovetail.vocabulary import Kind
    >>> link_between_nodes(Cluster.uniform(Kind(name="cpu", processor="cpu"))).bytes_per_second
    125000000.0
    """
    links = cluster.links
    return HopLink(bytes_per_second=network_rate(links), latency_seconds=network_latency(links))
