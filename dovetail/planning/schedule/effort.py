"""How much planning a plan is worth: what it could still save is set against the time that planning takes."""

from dovetail.planning.problem import Problem
from dovetail.planning.schedule import joint, listing
from dovetail.vocabulary import Plan

# The part of a schedule's length that may go into planning it, and the gap that is not worth closing.
SHARE = 0.01
# Solver work for one plan at most; a unit is about two seconds of a core.
_MOST = 10.0
# Below this a solver is hardly loaded before its time is up.
_LEAST = 0.25
# From so many tasks on the list planner is as good and much quicker, where it can do what is asked.
_MANY = 2000


def plan(problem: Problem) -> Plan:
    """The joint planner's plan, with as much work as the length of the schedule allows; at once where something runs,
    since devices that fell free would wait for it.

    A sweep of a minute is planned by the heuristic in hundredths of a second, one of a day by the solver.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> family = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> plan(Problem(cluster=cluster, families=(family,), options=(option,))).schedule.makespan_seconds
    20.0
    """
    first = plan_at_once(problem)
    assert first.schedule is not None
    work = min(_MOST, SHARE * first.schedule.makespan_seconds / 2)
    if first.gap <= SHARE or work < _LEAST or problem.running or _count(problem) > _MANY:
        return first
    better = joint.plan(problem, work=work)
    return better if better.gap < first.gap else first


def plan_at_once(problem: Problem) -> Plan:
    """The best plan that takes no search.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Problem(cluster=Cluster(kinds=(), nodes=(), devices=()), families=(), options=())
    >>> plan_at_once(nothing).schedule.placements
    ()
    """
    is_plain = problem.objective == "makespan" and not problem.deadlines
    is_plain = is_plain and all(len(option.families) == 1 for option in problem.options)
    return listing.plan(problem) if _count(problem) > _MANY and is_plain else joint.plan(problem, work=0.0)


def _count(problem: Problem) -> int:
    return sum(len(family.members) for family in problem.families)
