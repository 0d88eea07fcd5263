"""`dt.plan`: what has to be measured is measured, then everything is planned, on this cluster or on one imagined."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dovetail.control import Reconciliation, Settings
from dovetail.engines import Engine
from dovetail.planning import PLANNERS, Problem, check, check_promises, derive_options
from dovetail.planning import plan as plan_schedule
from dovetail.planning.hopping import plan_with_shards
from dovetail.planning.options.derivation import NOTHING_ALLOWED, Allowed
from dovetail.planning.options.kinds import parse_cluster
from dovetail.planning.options.roofline import predict_profiles
from dovetail.planning.schedule.shadow import one_more
from dovetail.verbs.amendments import amend, is_elsewhere, limit_cluster, price_cluster
from dovetail.verbs.choices import choose
from dovetail.verbs.controller import check_not_stopped, ensure_directory, failures, open_controller
from dovetail.verbs.engine_places import Given, MakeEngine, described_programs, open_place, read_workload
from dovetail.verbs.measure import rated_cluster
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    Family,
    Kind,
    Member,
    NoFeasiblePlan,
    Objective,
    Plan,
    Profile,
    TaskId,
    Workload,
)
from dovetail.vocabulary.work import name_tasks

Planner = Callable[[Problem], Plan]


def plan(
    workload: Given,
    *,
    objective: str | None = None,
    weights: Mapping[str, float] = MappingProxyType({}),
    deadlines: Mapping[str, float] = MappingProxyType({}),
    prices: Mapping[str, float] = MappingProxyType({}),
    techniques: str | Iterable[str] | None = None,
    device_memory: str | int | None = None,
    allow: str | Iterable[str] | None = None,
    cluster: Cluster | str | None = None,
    explain: bool = False,
    solve_seconds: float = 5.0,
    planner: str | Planner | None = None,
    store: str | Path = ".dovetail",
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
    before: Callable[[Reconciliation], None] = lambda found: None,
) -> Plan:
    """Measure what has not been measured yet, and plan. Nothing is trained beyond the trials.

    `print(plan)` shows a table and why; `dt.run(plan)` runs that schedule. What was measured stays in `store`: give
    `dt.run` the same one.

    What is wanted of the whole may be said here as in `dt.workload`, and counts more than what the workload says:
    `objective`, `weights`, `deadlines` in seconds from when the plan starts, `techniques`, `device_memory`, `allow`.
    `prices` are of an hour of one device, by kind. Deadlines are kept, or refused.

    `cluster` is what is detected unless told otherwise, or one that is imagined, such as `"8xa100+4xv100"`: kinds that
    are not here are predicted from what was measured here, and options on them are marked so. `explain` adds what one
    more device of each kind would buy. The planner searches for about `solve_seconds`, unless another `planner`
    is given, a name or a function from a problem to a plan. `engine` and `address` say where it is measured, as in
    `dt.run`. A store that cannot be written is refused before anything starts:

    >>> from dovetail.describe import grid
    >>> workload = grid("dovetail.testing.programs:dropout", seed=[0, 1], steps=9)
    >>> plan(workload, store="/dev/null/store")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dovetail.vocabulary.errors.StoreError: the store's directory /dev/null/store must be writable; found: ...
    """
    search = _search(planner, solve_seconds)
    found = measure_workload(
        workload,
        cluster=cluster,
        prices=prices,
        store=store,
        engine=engine,
        address=address,
        before=before,
        objective=objective,
        weights=weights,
        deadlines=deadlines,
        techniques=techniques,
        device_memory=device_memory,
        allow=allow,
    )
    problem = found.problem
    if isinstance(cluster, str):
        problem = found.on(found.asked)
    problem = dataclasses.replace(problem, cluster=found.asked)
    planned = solve(problem, found.workload, search, explain_seconds=solve_seconds if explain else 0.0)
    lines = (*planned.explanation, *(f"not planned: {failure}" for failure in found.failed))
    return dataclasses.replace(planned, explanation=lines, workload=found.workload, cluster=found.asked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredWorkload:
    """A workload as amended, what was measured of it on the kinds `at_hand`, its problem there, the cluster that was
    asked for, and why some of its tasks cannot be planned."""

    workload: Workload
    problem: Problem
    profiles: tuple[Profile, ...]
    at_hand: tuple[Kind, ...]
    asked: Cluster
    failed: tuple[str, ...]
    allowed: Allowed = NOTHING_ALLOWED

    def on(self, cluster: Cluster) -> Problem:
        """The problem on another cluster."""
        return imagine_problem(
            self.problem,
            cluster,
            profiles=self.profiles,
            at_hand=self.at_hand,
            workload=self.workload,
            allowed=self.allowed,
        )


def measure_workload(
    workload: Given,
    *,
    cluster: Cluster | str | None,
    prices: Mapping[str, float],
    store: str | Path,
    engine: str | Engine | MakeEngine,
    address: str,
    before: Callable[[Reconciliation], None],
    **amendments: Any,
) -> MeasuredWorkload:
    """Measure what has not been measured yet of a workload, so that it can be planned for the cluster asked for."""
    with contextlib.ExitStack() as stack:
        workload, spares = stack.enter_context(read_workload(workload, engine=engine))
        workload = amend(workload, **amendments)
        home = ensure_directory(Path(store))
        here, make = stack.enter_context(
            open_place(engine, address=address, programs=described_programs(workload), home=home, spares=spares)
        )
        here = cluster if isinstance(cluster, Cluster) else here
        asked = parse_cluster(cluster, at_hand=here.kinds) if isinstance(cluster, str) else here
        asked = limit_cluster(price_cluster(asked, prices, workload), workload)
        if isinstance(cluster, str) and is_elsewhere(asked, here):
            if spares is not None:  # what they import would disturb the measuring
                spares.close()
            here = rated_cluster(store=store)
        here = limit_cluster(here, workload) if any(kind.processor != "cpu" for kind in here.kinds) else here
        controller = stack.enter_context(
            # What approximations cost is measured before anybody judges whether they may be used.
            open_controller(
                dataclasses.replace(_unhurried(workload), keep={}),
                cluster=here,
                make=make,
                home=home,
                settings=Settings(),
            )
        )
        before(controller.reconcile())
        controller.measure()
        check_not_stopped(controller)
        problem = controller.problem()  # first, for tasks that nothing fits fail with it
        failed = failures(controller)
        if len(failed) == len(controller.tasks):
            raise DovetailError("no task could be planned:\n" + "\n".join(failed))
        return MeasuredWorkload(
            workload=workload,
            problem=problem,
            profiles=tuple(controller.store.profiles()),
            at_hand=tuple(here.kinds),
            asked=asked,
            failed=tuple(failed),
            allowed=controller.allowed(),
        )


def solve(problem: Problem, workload: Workload, search: Planner, *, explain_seconds: float = 0.0) -> Plan:
    """The plan of `search` for what the workload wants, checked; where there are `explain_seconds` for it, with what
    one more device of each kind would buy."""
    names = {task.identity: task.name for task in workload.tasks}
    problem = _as_wanted(problem, workload, names)
    try:
        found = plan_with_shards(problem, search)
        assert found.schedule is not None
        check(found.schedule, problem.cluster, running=problem.running, deadlines=problem.deadlines)
        check_promises(found.schedule, problem)
        # Deterministic work, about a second of one core for each unit.
        more = one_more(problem, found, work=explain_seconds / 4) if explain_seconds else ()
    except NoFeasiblePlan as error:
        raise NoFeasiblePlan(name_tasks(str(error), names)) from None
    return dataclasses.replace(
        found, explanation=tuple(name_tasks(line, names) for line in (*found.explanation, *more))
    )


def imagine_problem(
    problem: Problem,
    cluster: Cluster,
    *,
    profiles: Iterable[Profile],
    at_hand: Iterable[Kind],
    workload: Workload,
    allowed: Allowed = NOTHING_ALLOWED,
) -> Problem:
    """The same tasks on another cluster. What was not measured on its kinds is predicted, and marked so."""
    known, kinds = tuple(profiles), tuple(at_hand)
    present = [kind for kind, count in cluster.counts() if count]
    guessed = predict_profiles(known, at_hand=kinds, kinds=present)
    unsure = {(each.family, each.kind) for each in guessed}
    members: dict[str, list[Member]] = {}
    for family in problem.families:
        # Tasks that must keep their thread count here are free elsewhere.
        members.setdefault(family.measured_as, []).extend(family.members)
    offered, rejections = derive_options(
        (*known, *guessed),
        cluster,
        members={name: len(each) for name, each in members.items()},
        imagined={kind.name for kind in present},
        may=lambda technique, knobs: workload.allows(technique),
        allowed=allowed,
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
        profiles=(*known, *guessed),
    )


def _search(planner: str | Planner | None, solve_seconds: float) -> Planner:
    if not 0 < solve_seconds < float("inf"):
        raise DovetailError(
            f"the solver must have a time limit above 0 s, got {solve_seconds}. Give a second or more; "
            "a first plan is there long before."
        )
    if planner is not None:
        return choose("planner", planner, PLANNERS)
    return functools.partial(plan_schedule, work=solve_seconds)


def _unhurried(workload: Workload) -> Workload:
    """The same tasks to be measured: what is wanted of the plan counts from when it starts, not from before that."""
    return dataclasses.replace(workload, deadlines={}, objective="makespan", weights={})


def _as_wanted(problem: Problem, workload: Workload, names: Mapping[TaskId, str]) -> Problem:
    """The problem with the objective of the workload, and its weights and deadlines, which are by task name."""

    def member(one: Member) -> Member:
        name = names.get(one.task, one.task)
        weight, due = workload.weights.get(name, one.weight), workload.deadlines.get(name, one.deadline_seconds)
        return dataclasses.replace(one, weight=weight, deadline_seconds=due)

    families = tuple(
        dataclasses.replace(family, members=tuple(map(member, family.members))) for family in problem.families
    )
    return dataclasses.replace(problem, families=families, objective=str(Objective.parse(workload.objective)))
