"""What `dt.plan` does with a problem once everything was measured: the joint planner, on this cluster or another."""

import dataclasses
from collections.abc import Iterable, Mapping

from dovetail.planning import PLANNERS, Problem, check, derive_options
from dovetail.planning.options.kinds import SHEETS, with_prices
from dovetail.planning.options.roofline import predict_profiles
from dovetail.planning.schedule.joint import plan as joint_plan
from dovetail.planning.schedule.shadow import one_more
from dovetail.vocabulary import Cluster, DovetailError, Family, Kind, Member, Objective, Plan, Profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """What is asked of a plan beyond its workload; refused here where it cannot be, before anything is measured.

    `weights` and `deadlines`, seconds from now, are by task name, `prices` of an hour of one device by kind.
    """

    objective: str = "makespan"
    explain: bool = False
    solve_seconds: float = 5.0
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    deadlines: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.solve_seconds < float("inf"):
            raise DovetailError(
                f"the solver must have a time limit above 0 s, got {self.solve_seconds}. Give a second or more; "
                "a first plan is there long before."
            )
        if self.weights and Objective.parse(self.objective).name != "weighted":
            raise DovetailError(f"weights belong to objective 'weighted', got them with {self.objective!r}.")

    def check_cluster(self, cluster: Cluster, names: Mapping[str, str]) -> Cluster:
        """The cluster with its prices; `names` are the tasks' by identity."""
        unknown = sorted(set(self.weights) - set(names.values()))
        if unknown:
            raise DovetailError(f"a weight must be for a task of the workload; there is no {unknown[0]!r}.")
        priced = with_prices(cluster, self.prices)
        missing = [kind.name for kind, count in priced.counts() if count and not kind.price_per_hour > 0]
        if Objective.parse(self.objective).name == "spend" and missing:
            raise DovetailError(
                f"objective {self.objective!r} must have a price for each kind of the cluster, found none for "
                f"{missing[0]!r}. Give --price {missing[0]}=1.50, in Python prices={{{missing[0]!r}: 1.50}}."
            )
        return priced


def solved(problem: Problem, *, wish: Wish, names: Mapping[str, str]) -> Plan:
    """The joint planner's plan, checked, with what one more device of each kind would buy where that is asked for."""
    wished = tuple(
        dataclasses.replace(family, members=tuple(_wished(member, wish, names) for member in family.members))
        for family in problem.families
    )
    problem = dataclasses.replace(problem, families=wished, objective=wish.objective)
    # Deterministic work, about a second of one core for each unit; a quiet core takes about two.
    found = joint_plan(problem, work=wish.solve_seconds / 2)
    assert found.schedule is not None
    check(found.schedule, problem.cluster, running=problem.running, deadlines=problem.deadlines)
    if wish.explain:
        more = one_more(problem, found, work=wish.solve_seconds / 8)
        found = dataclasses.replace(found, explanation=(*found.explanation, *more))
    return found


def _wished(member: Member, wish: Wish, names: Mapping[str, str]) -> Member:
    name = names.get(member.task, member.task)
    return dataclasses.replace(
        member,
        weight=wish.weights.get(name, member.weight),
        deadline_seconds=wish.deadlines.get(name, member.deadline_seconds),
    )


def imagined(problem: Problem, cluster: Cluster, *, profiles: Iterable[Profile], at_hand: Iterable[Kind]) -> Problem:
    """The same tasks on another cluster. What was not measured on its kinds is predicted, and marked so."""
    known, kinds = tuple(profiles), tuple(at_hand)
    present = [kind for kind, count in cluster.counts() if count]
    guessed = predict_profiles(known, at_hand=kinds, kinds=present)
    unsure = {(each.family, each.kind) for each in guessed}
    members: dict[str, list[Member]] = {}
    for family in problem.families:
        # Tasks that must keep their thread count here are free elsewhere.
        members.setdefault(family.name.partition("@")[0], []).extend(family.members)
    offered, rejections = derive_options(
        (*known, *guessed),
        cluster,
        members={name: len(each) for name, each in members.items()},
        imagined={kind.name for kind in present},
    )
    wanted = {*members}
    return Problem(
        cluster=cluster,
        families=tuple(Family(name=name, members=tuple(each)) for name, each in members.items()),
        options=tuple(
            dataclasses.replace(o, measured=o.measured and not any((f, o.kind) in unsure for f in o.families))
            for o in offered
            if wanted.issuperset(o.families)
        ),
        rejections=tuple(each for each in rejections if wanted.intersection(each.families)),
    )


def is_elsewhere(cluster: Cluster, here: Cluster) -> bool:
    """Whether a cluster has accelerators that are not here."""
    kinds = {kind.name for kind in here.kinds}
    return any(kind.name in SHEETS and kind.name not in kinds for kind in cluster.kinds)


class Remembering:
    """The list planner, which remembers the last problem it was given: quick, for judging trials by."""

    def __init__(self) -> None:
        self.problem: Problem | None = None

    def __call__(self, problem: Problem) -> Plan:
        self.problem = problem
        return PLANNERS["list"](problem.without_deadlines())
