"""What every policy must hold: its shares can be had, and they depend on the problem, not on names, order or units.

```python
from dovetail.testing.policies import ParetoConformance, PolicyConformance, SharingConformance

class TestMine(PolicyConformance, ParetoConformance, SharingConformance):     # the last two if it promises so much
    def allocate(self, problem):
        return mine.allocate(problem)
```
"""

import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail.planning.checker import check
from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.levels import most_worth
from dovetail.planning.share.policies.isolated import allocate as isolated
from dovetail.planning.share.rounds import Gang, Received, Rota, after
from dovetail.vocabulary import Allocation, Cluster, Device, Family, Kind, Member, Node, Option, TaskId

SEEDS = range(12)
# What a solver calls equal, with some room.
EQUAL = 1e-5


def draw(seed: int, *, widest: int = 2, packed: bool = True, alike: bool = False) -> Problem:
    """A small problem: one to three kinds, one to four families of one to three tasks, some of which pay together.

    >>> draw(0) == draw(0)
    True
    """
    dice = random.Random(seed)
    devices = {f"k{number}": dice.randint(widest, 4) for number in range(dice.randint(1, 3))}
    families, options = [], []
    for number in range(dice.randint(1, 4)):
        name, count = f"f{number}", dice.randint(1, widest)
        members = [_member(dice, TaskId(f"{name}-{index}"), alike) for index in range(dice.randint(1, 3))]
        families.append(Family(name=name, members=tuple(members)))
        options += [_option((name,), kind, count, (dice.uniform(0.1, 2.0),)) for kind in devices]
    for one in options[:] if packed else []:
        other = dice.choice(options[: len(families) * len(devices)])
        if (other.kind, other.count) == (one.kind, one.count):
            slower = [seconds * dice.uniform(1.1, 1.9) for seconds in (one.step_seconds[0], other.step_seconds[0])]
            options.append(_option((one.families[0], other.families[0]), one.kind, one.count, tuple(slower)))
    return Problem(cluster=_cluster(devices), families=tuple(families), options=tuple(options))


class Conformance:
    """What is tested: a policy, the largest device count of a task that it can serve, and whether it serves gangs."""

    widest: int = 2
    packed: bool = True

    def allocate(self, problem: Problem) -> Allocation:
        """The policy under test."""
        raise NotImplementedError


class PolicyConformance(Conformance):
    """Laws of every policy."""

    def test_shares_can_be_had(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            allocation = self.allocate(problem)
            used: dict[str, float] = defaultdict(float)
            busy = [0.0] * len(allocation.groups)
            for share in allocation.shares:
                assert share.share > 0
                used[share.option.kind] += share.share * share.option.count
                for group in share.groups:
                    busy[group] += share.share
            for kind, devices in problem.cluster.counts():
                assert used[kind.name] <= devices * (1 + EQUAL)
            for tasks, time in zip(allocation.groups, busy, strict=True):
                assert time <= len(tasks) * (1 + EQUAL)

    def test_every_task_is_in_one_group_of_its_family(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            allocation = self.allocate(problem)
            family = {member.task: each.name for each in problem.families for member in each.members}
            assert sorted(task for group in allocation.groups for task in group) == sorted(family)
            for share in allocation.shares:
                for group, name in zip(share.groups, share.option.families, strict=True):
                    assert {family[task] for task in allocation.groups[group]} == {name}

    def test_order_does_not_matter(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            dice = random.Random(seed)
            families = [
                dataclasses.replace(family, members=_shuffle(dice, family.members))
                for family in _shuffle(dice, problem.families)
            ]
            cluster = dataclasses.replace(problem.cluster, kinds=_shuffle(dice, problem.cluster.kinds))
            shuffled = dataclasses.replace(
                problem, cluster=cluster, families=tuple(families), options=_shuffle(dice, problem.options)
            )
            assert self.allocate(shuffled).value == pytest.approx(self.allocate(problem).value, rel=EQUAL)

    def test_names_do_not_matter(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            renamed = dataclasses.replace(
                problem,
                families=tuple(
                    dataclasses.replace(_each_member(family, _rename), name=f"other {family.name[::-1]}")
                    for family in problem.families
                ),
                options=tuple(
                    dataclasses.replace(option, families=tuple(f"other {name[::-1]}" for name in option.families))
                    for option in problem.options
                ),
            )
            assert self.allocate(renamed).value == pytest.approx(self.allocate(problem).value, rel=EQUAL)

    def test_the_currency_does_not_matter(self) -> None:
        for seed in SEEDS:
            problem = dataclasses.replace(
                draw(seed, widest=self.widest, packed=self.packed), spend_limit_per_hour=float(1 + seed)
            )
            kinds = [
                dataclasses.replace(kind, price_per_hour=7 * kind.price_per_hour) for kind in problem.cluster.kinds
            ]
            dear = dataclasses.replace(
                problem,
                cluster=dataclasses.replace(problem.cluster, kinds=tuple(kinds)),
                spend_limit_per_hour=7 * problem.spend_limit_per_hour,
            )
            assert self.allocate(dear).value == pytest.approx(self.allocate(problem).value, rel=EQUAL)

    def test_every_round_passes_the_check(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            rota, received = Rota(problem, self.allocate(problem)), Received()
            gangs: tuple[Gang, ...] = ()
            for _ in range(3):
                made = rota.next(received=received, previous=gangs)
                check(made.schedule(problem), problem.cluster)
                received, gangs = after(received, made, seconds=made.seconds), made.gangs

    def test_what_is_possible_does_not_exceed_the_bound(self) -> None:
        for seed in SEEDS:
            allocation = self.allocate(draw(seed, widest=self.widest, packed=self.packed))
            assert allocation.bound >= allocation.value >= 0

    def test_the_length_of_a_step_does_not_matter(self) -> None:
        """Half as many steps that take twice as long are the same work."""
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            name = problem.families[0].name
            longer = dataclasses.replace(
                problem,
                families=tuple(_each_member(f, _half) if f.name == name else f for f in problem.families),
                options=tuple(_longer(option, name) for option in problem.options),
            )
            assert self.allocate(longer).value == pytest.approx(self.allocate(problem).value, rel=EQUAL)

    def test_no_more_is_spent_than_may_be(self) -> None:
        for seed in SEEDS:
            problem = dataclasses.replace(draw(seed, widest=self.widest, packed=self.packed), spend_limit_per_hour=2.0)
            allocation = self.allocate(problem)
            spent = sum(s.share * s.option.count * _price(problem, s.option.kind) for s in allocation.shares)
            assert spent <= 2.0 * (1 + EQUAL)
            assert not allocation.fills

    def test_nothing_to_share(self) -> None:
        problem = dataclasses.replace(draw(0, widest=self.widest, packed=self.packed), families=())
        assert self.allocate(problem).shares == ()


class ParetoConformance(Conformance):
    """For policies that leave nothing that somebody could use."""

    def test_nobody_can_have_more_without_somebody_having_less(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=self.widest, packed=self.packed)
            arrays = columns(problem, alike=lambda member: member.task)
            rates = rates_by_task(self.allocate(problem))
            floors = np.array([rates[group[0].task] for group in arrays.members])
            worths = arrays.worths(arrays.references())
            best = most_worth(arrays, worths=worths, floors=floors * (1 - EQUAL))
            assert best is not None
            reached = float((floors / arrays.references()).sum())
            assert float(worths @ best) <= reached * (1 + 100 * EQUAL)


class SharingConformance(Conformance):
    """For policies under which nobody would rather have an equal part of every kind."""

    def test_sharing_is_no_worse_than_an_equal_part(self) -> None:
        for seed in SEEDS:
            problem = draw(seed, widest=1, alike=True)
            shared, own = rates_by_task(self.allocate(problem)), rates_by_task(isolated(problem))
            for task, rate in own.items():
                assert shared[task] >= rate * (1 - 10 * EQUAL)


def rates_by_task(allocation: Allocation) -> dict[str, float]:
    """The steps per second of every task.

    >>> rates_by_task(Allocation(shares=(), groups=(("a",),)))
    {'a': 0.0}
    """
    rates = allocation.rates()
    return {task: rate for tasks, rate in zip(allocation.groups, rates, strict=True) for task in tasks}


def _price(problem: Problem, kind: str) -> float:
    return problem.cluster.kind(kind).price_per_hour


def _member(dice: random.Random, task: TaskId, alike: bool) -> Member:
    if alike:
        return Member(task=task, steps=1000)
    return Member(
        task=task,
        steps=2 * dice.randint(50, 5000),
        weight=dice.choice([1.0, 2.0]),
        age_seconds=dice.uniform(0.0, 100.0),
        isolated_seconds=dice.uniform(0.0, 100.0),
    )


def _option(families: tuple[str, ...], kind: str, count: int, seconds: tuple[float, ...]) -> Option:
    technique = "resident" if len(families) == 1 else "interleave"
    return Option(families=families, technique=technique, kind=kind, count=count, step_seconds=seconds)


def _cluster(devices: dict[str, int]) -> Cluster:
    return Cluster(
        kinds=tuple(
            Kind(name=kind, processor="cuda", price_per_hour=number + 0.5) for number, kind in enumerate(devices)
        ),
        nodes=tuple(Node(name=kind, cores=64, memory_bytes=1 << 40) for kind in devices),
        devices=tuple(
            Device(name=f"{kind}:{index}", kind=kind, node=kind, index=index)
            for kind, count in devices.items()
            for index in range(count)
        ),
    )


def _each_member(family: Family, change: Callable[[Member], Member]) -> Family:
    return dataclasses.replace(family, members=tuple(change(member) for member in family.members))


def _shuffle(dice: random.Random, things: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dice.sample(things, len(things)))


def _rename(member: Member) -> Member:
    return dataclasses.replace(member, task=TaskId(f"other {member.task[::-1]}"))


def _half(member: Member) -> Member:
    return dataclasses.replace(member, steps=member.steps // 2)


def _longer(option: Option, family: str) -> Option:
    seconds = tuple(
        2 * each if name == family else each for name, each in zip(option.families, option.step_seconds, strict=True)
    )
    return dataclasses.replace(option, step_seconds=seconds)
