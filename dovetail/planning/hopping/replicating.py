"""Data-parallel over the nodes that hold shards, weighed beside hopping.

What a task learns must not depend on how it is run, and each of its batches comes of one shard. So copies on several
nodes have to share the rows of the very same batch, whose shard they read from where it lies: that is what is predicted
here, and what is done where every shard can be read from every node and such copies were measured. Copies that each
read only the shard of their own node would learn from rows of all shards at once, which is another mathematics and no
planner's business.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Set

from dovetail.planning.hopping.open_shop import HopLink
from dovetail.planning.links import ring_share
from dovetail.planning.problem import Problem, ShardTour
from dovetail.vocabulary import NoFeasiblePlan, Option, Plan, TaskId


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replicating:
    """What training on all `nodes` at once, one task after the other, would take; the `plan` that does it, or the
    `reason` why there is none.

    >>> Replicating(nodes=4, seconds=60.0).plan is None
    True
    """

    nodes: int = 0
    seconds: float = math.inf
    plan: Plan | None = None
    reason: str = ""

    @staticmethod
    def ends(plan: Plan) -> float:
        """When a plan's last placement ends."""
        assert plan.schedule is not None
        return plan.schedule.makespan_seconds


def weigh(
    problem: Problem,
    tours: Mapping[TaskId, ShardTour],
    options: Mapping[TaskId, Mapping[str, Option]],
    *,
    link: HopLink,
    planner: Callable[[Problem], Plan],
) -> Replicating:
    """What training copies of each model on all nodes that hold shards would take, and the plan where that can be."""
    nodes = {node for tour in tours.values() for homes in tour.homes.values() for node in homes}
    if len(nodes) < 2:
        return Replicating(nodes=len(nodes))
    seconds = sum(_seconds(tour, options[task], len(nodes), link) for task, tour in tours.items())
    if reason := _why_not(tours, nodes):
        return Replicating(nodes=len(nodes), seconds=seconds, reason=_refusal(reason))
    gangs = _gangs(problem, tours)
    if not gangs or len(tours) < len(problem.tours):
        return Replicating(nodes=len(nodes), seconds=seconds, reason=_refusal("no such copies have been measured"))
    own = {family for option in gangs for family in option.families}
    others = tuple(option for option in problem.options if own.isdisjoint(option.families))
    with contextlib.suppress(NoFeasiblePlan):  # visits may be
        plan = planner(dataclasses.replace(problem, tours={}, options=(*gangs, *others)))
        return Replicating(nodes=len(nodes), seconds=Replicating.ends(plan), plan=plan)
    return Replicating(nodes=len(nodes), seconds=seconds)


def _why_not(tours: Mapping[TaskId, ShardTour], nodes: Set[str]) -> str:
    """Why copies on these nodes cannot share batches; empty where they can."""
    if any(tour.option is not None for tour in tours.values()):
        return "some visits are under way"
    if any(tour.evaluation is not None for tour in tours.values()):
        return "shards of an evaluation lie on nodes, too"
    fixed = sorted(
        shard
        for tour in tours.values()
        for shard, homes in tour.homes.items()
        if shard not in tour.read_seconds and not nodes <= set(homes)
    )
    if fixed:
        return (
            f"all of them would have to read the rows of the same batch, and shard {fixed[0]!r} cannot be read from "
            f"every node"
        )
    return ""


def _refusal(why: str) -> str:
    return f"copies on several nodes at once are not taken, since {why}"


def _seconds(tour: ShardTour, options: Mapping[str, Option], copies: int, link: HopLink) -> float:
    """Steps divided among copies, with gradients around a ring in each, and every batch's rows sent to where they are
    not: from the port of the node that holds a shard to all others."""
    step = max(option.step_seconds[0] for option in options.values())
    ring = 2 * (copies - 1) * link.latency_seconds + ring_share(copies) * tour.gradient_bytes / link.bytes_per_second
    visits = [visit for epoch in tour.trainings for visit in epoch]
    return sum(steps * (step / copies + ring) for _, steps in visits) + _reading_seconds(tour, copies)


def _reading_seconds(tour: ShardTour, copies: int) -> float:
    visited = [shard for epoch in tour.trainings for shard, _ in epoch]
    once = dict.fromkeys(shard for shard in visited if shard in tour.copied)
    read = [*once, *(shard for shard in visited if shard not in tour.copied)]
    return sum(max(copies - len(tour.homes[shard]), 0) * tour.read_seconds.get(shard, 0.0) for shard in read)


def _gangs(problem: Problem, tours: Mapping[TaskId, ShardTour]) -> tuple[Option, ...]:
    """What is offered of copies over several nodes to all families with shards, as it is with reading shards from afar
    in every step; nothing unless each of them has an offer."""
    found, missing = list[Option](), False
    for family in problem.families:
        own = [tours[member.task] for member in family.members if member.task in tours]
        if own:
            wanted = [o for o in problem.options if o.families == (family.name,) and o.nodes > 1]
            wanted = [option for option in wanted if option.technique == "replicate"]
            missing |= not wanted or len(own) < len(family.members)
            found += [_reading_too(option, own) for option in wanted]
    return () if missing else tuple(found)


def _reading_too(option: Option, tours: list[ShardTour]) -> Option:
    steps = [sum(steps for epoch in tour.trainings for _, steps in epoch) for tour in tours]
    reading = max(
        _reading_seconds(tour, option.nodes) / count for tour, count in zip(tours, steps, strict=True) if count
    )
    return dataclasses.replace(option, step_seconds=tuple(each + reading for each in option.step_seconds))
