"""Problems for the benches of sharing: tasks of Gavel's families, equal, nearly equal, or all unlike."""

import dataclasses
import itertools
import random

from streams import cluster_of

from dovetail.planning.problem import Problem
from dovetail.vocabulary import Family, Member, Option

KINDS = ("v100", "p100", "k80")
PRICES = {"v100": 3.06, "p100": 1.46, "k80": 0.9}


def merged(options: tuple[Option, ...], tasks: int, *, seed: int = 0) -> Problem:
    """Tasks of families drawn at random, a sixth as many devices of each kind."""
    dice = random.Random(seed)
    names = sorted({option.families[0] for option in options if len(option.families) == 1})
    members: dict[str, list[Member]] = {name: [] for name in names}
    for number in range(tasks):
        members[dice.choice(names)].append(Member(task=f"t{number}", steps=1000))
    families = tuple(Family(name=name, members=tuple(found)) for name, found in members.items() if found)
    return Problem(cluster=cluster_of(dict.fromkeys(KINDS, tasks // 6)), families=families, options=options)


def unlike(options: tuple[Option, ...], tasks: int, *, spread: float = 0.5, seed: int = 0) -> Problem:
    """Every task a family of its own, its rates those of one drawn at random, each up to `spread` more or less."""
    dice = random.Random(seed)
    drawn = apart(merged(options, tasks, seed=seed))
    varied = tuple(
        dataclasses.replace(option, step_seconds=(option.step_seconds[0] / dice.uniform(1 - spread, 1 + spread),))
        for option in drawn.options
    )
    return dataclasses.replace(drawn, options=varied)


def limited(problem: Problem, *, part: float = 0.5) -> Problem:
    """The same problem with prices, and a part of what all devices cost to be spent."""
    cluster = cluster_of({kind.name: count for kind, count in problem.cluster.counts()}, prices=PRICES)
    most = sum(kind.price_per_hour * count for kind, count in cluster.counts())
    return dataclasses.replace(problem, cluster=cluster, spend_limit_per_hour=part * most)


def apart(problem: Problem) -> Problem:
    """The same problem with every task in a family of its own."""
    members = {family.name: family.members for family in problem.families}
    options = []
    for option in problem.options:
        if all(name in members for name in option.families):
            for gang in itertools.product(*(members[name] for name in option.families)):
                names = tuple(member.task for member in gang)
                if len(set(names)) == len(names) and (len(set(option.families)) > 1 or names == tuple(sorted(names))):
                    options.append(dataclasses.replace(option, families=names))
    families = tuple(Family(name=m.task, members=(m,)) for found in members.values() for m in found)
    return dataclasses.replace(problem, families=families, options=tuple(options))
