"""From where things stand to the one frozen problem that planners read."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

from dovetail.plan import Problem, options
from dovetail.vocabulary import Cluster, Family, Member, Option, Placement, Profile, Rejection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """A task to be placed: its family, the steps it still needs, and the device count it must keep (0: any)."""

    task: str
    family: str
    steps: int
    count: int = 0


def snapshot(
    waiting: Iterable[Waiting],
    *,
    profiles: Iterable[Profile],
    cluster: Cluster,
    running: tuple[Placement, ...] = (),
    rejected: Iterable[Rejection] = (),
    objective: str = "makespan",
) -> Problem:
    """The problem of placing these tasks next to what runs. `rejected` are the options that trials found not to fit.

    A task that has begun on n CPU threads keeps n, because its rounding depends on them (law 1); such tasks are
    a family of their own, with the one option they may have. Where that is gone (another machine), any will do.
    """
    found, rejections = options(profiles, cluster, gangs=True)
    by_family: dict[str, list[Option]] = {}
    for option in found:
        if len(option.families) == 1:
            by_family.setdefault(option.families[0], []).append(option)
    families: dict[tuple[str, int], list[Member]] = {}
    for one in waiting:
        kept = one.count if any(o.count == one.count for o in by_family.get(one.family, ())) else 0
        families.setdefault((one.family, kept), []).append(Member(task=one.task, steps=one.steps))
    together = [option for option in found if len(option.families) > 1]
    present = {kind.name for kind, count in cluster.counts() if count}
    return Problem(
        cluster=cluster,
        families=tuple(
            Family(name=_name(family, count), members=tuple(members)) for (family, count), members in families.items()
        ),
        options=(
            *(
                dataclasses.replace(option, families=(_name(family, count),))
                for family, count in families
                for option in by_family.get(family, ())
                if count in (0, option.count)
            ),
            *_gangs(together, families),
        ),
        rejections=(*rejections, *(each for each in rejected if each.kind in present)),
        running=running,
        objective=objective,
    )


def _gangs(options: Iterable[Option], families: Iterable[tuple[str, int]]) -> Iterator[Option]:
    """Each gang for every way in which its families are split by the counts that their tasks keep."""
    kept: dict[str, list[int]] = {}
    for family, count in families:
        kept.setdefault(family, []).append(count)
    for option in options:
        able = [[n for n in kept.get(family, ()) if n in (0, option.count)] for family in option.families]
        for counts in itertools.product(*able):
            names = tuple(_name(family, count) for family, count in zip(option.families, counts, strict=True))
            yield dataclasses.replace(option, families=names)


def unplaceable(problem: Problem) -> dict[str, str]:
    """For each task that no option fits, why."""
    able = {family for option in problem.options for family in option.families}
    return {
        member.task: _reason(family.name, problem.rejections)
        for family in problem.families
        if family.name not in able
        for member in family.members
    }


def without(problem: Problem, tasks: Mapping[str, str]) -> Problem:
    """The problem less some tasks."""
    families = tuple(
        dataclasses.replace(family, members=tuple(m for m in family.members if m.task not in tasks))
        for family in problem.families
    )
    return dataclasses.replace(problem, families=tuple(family for family in families if family.members))


def _name(family: str, count: int) -> str:
    return f"{family}@{count}" if count else family


def _reason(family: str, rejections: Iterable[Rejection]) -> str:
    reasons = [rejection.reason for rejection in rejections if family.partition("@")[0] in rejection.families]
    return "no option fits it: " + ("; ".join(reasons) if reasons else "none was measured")
