"""From where things stand to the one frozen problem that planners read."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dovetail.planning import Problem, derive_options, spec_of
from dovetail.planning.options.derivation import NOTHING_ALLOWED, Allowed
from dovetail.vocabulary import (
    Cluster,
    Entity,
    Family,
    FamilyKey,
    Member,
    Option,
    Placement,
    Profile,
    Rejection,
    TaskId,
)
from dovetail.vocabulary.approximations import Approximate, split_knobs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """A task to be placed: its family, the steps it still needs, the threads it must keep (0: any), how much
    it counts, whether it is to run with no other in a gang, in how many seconds it must have ended, and the
    approximations that it began with (None: it has not begun)."""

    task: TaskId
    family: str
    steps: int
    count: int = 0
    weight: float = 1.0
    alone: bool = False
    deadline_seconds: float = math.inf
    approximate: Approximate | None = None


def snapshot(
    waiting: Iterable[Waiting],
    *,
    profiles: Iterable[Profile],
    cluster: Cluster,
    may: Callable[..., bool] = lambda technique, knobs: True,
    running: tuple[Placement, ...] = (),
    rejected: Iterable[Rejection] = (),
    divided: Iterable[tuple[Profile, Mapping[str, Any]]] = (),
    objective: str = "makespan",
    allowed: Allowed = NOTHING_ALLOWED,
) -> Problem:
    """The problem of placing these tasks next to what runs. `may` says of a technique with its knobs whether users
    allow it. `rejected` are the options that were found not to fit, and `divided` profiles of what ran out of memory,
    with the knobs of the lower rung to offer them on; `allowed`, by family, the approximations that it may have.

    A task that has begun on n CPU threads keeps n, because its rounding depends on them (law 1); such tasks are
    a family of their own, with the one option they may have. Where that is gone (another machine), any will do.
    So it is with the approximations that one began with, or with none: it goes on so, or not at all.
    Those that are to run alone are families of their own, too, which no gang has among its own.
    """
    waiting, rejected, profiles = tuple(waiting), tuple(rejected), tuple(profiles)
    counts = Counter(one.family for one in waiting)
    offers = Offers(
        *derive_options(profiles, cluster, members=counts, divided=divided, rejected=rejected, may=may, allowed=allowed)
    )
    families: dict[FamilyKey, list[Member]] = {}
    for one in waiting:
        key = FamilyKey(
            family=one.family,
            threads=offers.kept(one.family, one.count),
            alone=one.alone,
            approximate=offers.goes_on(one.family, one.approximate),
        )
        member = Member(task=one.task, steps=one.steps, weight=one.weight, deadline_seconds=one.deadline_seconds)
        families.setdefault(key, []).append(member)
    present = {kind.name for kind, count in cluster.counts() if count}
    return dataclasses.replace(
        offers.problem(families, cluster=cluster),
        rejections=(*offers.rejections, *(each for each in rejected if each.kind in present)),
        running=running,
        objective=objective,
        profiles=profiles,
    )


class Offers:
    """The options there are, looked up by family once for the many problems that are made of them.

    >>> from dovetail.vocabulary import Kind
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> two = dataclasses.replace(one, count=2)
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> key = FamilyKey(family="f", threads=2)
    >>> problem = Offers([one, two]).problem({key: [Member(task="a", steps=9)]}, cluster=cluster)
    >>> [(option.families, option.count) for option in problem.options]
    [(('f (2 threads)',), 2)]
    """

    def __init__(self, options: Iterable[Option], rejections: Iterable[Rejection] = ()) -> None:
        self.options, self.rejections = tuple(options), tuple(rejections)
        self._alone: dict[str, list[Option]] = {}
        self._together: list[Option] = []
        for option in self.options:
            if len(option.families) == 1:
                self._alone.setdefault(option.families[0], []).append(option)
            else:
                self._together.append(option)
        self._kept: dict[FamilyKey, list[Option]] = {}

    def kept(self, family: str, count: int) -> int:
        """The count that a task must keep if it can, else 0."""
        return count if count and any(_threads(o) == count for o in self._alone.get(family, ())) else 0

    def goes_on(self, family: str, approximate: Approximate | None) -> Approximate | None:
        """The approximations that a task must keep which began with these; None where there is nothing to choose."""
        others = any(_approximate(option) != approximate for option in self._alone.get(family, ()))
        return approximate if approximate or others else None

    def problem(
        self,
        families: Mapping[FamilyKey, Iterable[Member]],
        *,
        cluster: Cluster,
        round_seconds: float = 0.0,
        entities: tuple[Entity, ...] = (),
    ) -> Problem:
        """The problem of these members."""
        return Problem(
            cluster=cluster,
            families=tuple([_family(key, members) for key, members in families.items()]),
            options=(*itertools.chain.from_iterable(map(self._of, families)), *_gangs(self._together, families)),
            round_seconds=round_seconds,
            entities=entities,
        )

    def _of(self, key: FamilyKey) -> list[Option]:
        """The options of one task that it may have."""
        if not key.is_limited:
            return self._alone.get(key.family, [])
        if key not in self._kept:
            found = [o for o in self._alone.get(key.family, ()) if _may_have(key, o)]
            self._kept[key] = [option.named([key]) for option in found]
        return self._kept[key]


def _family(key: FamilyKey, members: Iterable[Member]) -> Family:
    return Family(name=str(key), members=tuple(members), key=key if key.is_limited else None)


def _gangs(options: Iterable[Option], families: Iterable[FamilyKey]) -> Iterator[Option]:
    """Each gang for every way in which its families are split by the threads that their tasks keep; not with tasks that
    are to run alone."""
    able: dict[str, list[FamilyKey]] = {}
    for key in families:
        if not key.alone:
            able.setdefault(key.family, []).append(key)
    for option in options:
        if not all(family in able for family in option.families):
            continue
        fitting = [[key for key in able[name] if _may_have(key, option)] for name in option.families]
        for keys in itertools.product(*fitting):
            if not any(key.is_limited for key in keys):
                yield option  # the very same, which rounds can tell at a glance
                continue
            yield option.named(keys)


def unplaceable(problem: Problem, *, techniques: Iterable[str] = ()) -> dict[TaskId, str]:
    """For each task that no option fits, why; where only some `techniques` are allowed, that is among the reasons."""
    able = {family for option in problem.options for family in option.families}
    limits = f"; the workload allows only techniques {','.join(techniques)} (--techniques, techniques=)"
    return {
        member.task: _reason(family.measured_as, problem.rejections) + _began(family) + (limits if techniques else "")
        for family in problem.families
        if family.name not in able
        for member in family.members
    }


def without(problem: Problem, tasks: Mapping[TaskId, str]) -> Problem:
    """The problem less some tasks."""
    families = tuple(
        dataclasses.replace(family, members=tuple(m for m in family.members if m.task not in tasks))
        for family in problem.families
    )
    return dataclasses.replace(problem, families=tuple(family for family in families if family.members))


def with_more(problem: Problem, count: int) -> Problem:
    """The problem with `count` more tasks, spread over its families as those it has: what is worth trying for ten tasks
    of which thirty like them follow is what is worth trying for forty."""
    known = sum(len(family.members) for family in problem.families)
    if not (known and count):
        return problem
    families = []
    for family in problem.families:
        more = count * len(family.members) // known
        steps = max(member.steps for member in family.members)
        coming = [Member(task=TaskId(f"{family.name}, to come {number}"), steps=steps) for number in range(more)]
        families.append(dataclasses.replace(family, members=(*family.members, *coming)))
    return dataclasses.replace(problem, families=tuple(families))


def _may_have(key: FamilyKey, option: Option) -> bool:
    """Whether tasks that are limited so may be trained by an option of their family."""
    return key.threads in (0, _threads(option)) and key.approximate in (None, _approximate(option))


def _approximate(option: Option) -> Approximate:
    return split_knobs(option.knobs)[0]


def _began(family: Family) -> str:
    began = family.key.approximate if family.key is not None else None
    if not began:
        return ""
    return (
        f"; it began with {began} and goes on so: allow that (--allow {began.replace('+', ',')}), or train it anew "
        f"(--fresh)"
    )


def _threads(option: Option) -> int:
    """How many of a CPU's cores each process of an option has."""
    return spec_of(option.technique).threads(option.count)


def _reason(family: str, rejections: Iterable[Rejection]) -> str:
    reasons = [rejection.reason for rejection in rejections if family in rejection.families]
    return "no option fits it: " + ("; ".join(reasons) if reasons else "none was measured")
