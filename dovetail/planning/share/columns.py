"""A problem of sharing, as arrays: groups of tasks that are treated alike, and columns, the ways in which they run.

Tasks of one family have the same options; where a policy also reads the same of them (weight, steps, ...) they are
one group. The program is unchanged when two tasks of a group trade names, so the mean over all such trades of any
optimum is an optimum in which they fare alike: it is enough to decide how much time a group gets in all. That is
exact. A gang of two groups spreads its time evenly over all pairs of their tasks.

Knows columns, groups and pools; does not know any policy.
"""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.planning.problem import Problem
from dovetail.planning.solver.linear import Indices, Numbers
from dovetail.vocabulary import Allocation, InvalidWorkload, Member, NoFeasiblePlan, Option, Share

_SHOWN = 5
# Shares below this, a second a day, are crumbs: the solver's rounding, and what a second objective may take of the
# first. They would have rounds turn over for nobody's sake.
_NOTHING = 1e-5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The arrays. A column is an option for certain groups; `x` of a column is how many such gangs run at once.

    `entry_*` list which groups a column runs, the steps per second that each gets in all, and how many of its tasks
    the column keeps busy. `single` says which columns run one task. `capacity` holds the devices of each kind and,
    last, what may be spent an hour; `draws` what each column takes of its kind, `prices` what it spends an hour.

    >>> from dovetail.vocabulary import Cluster, Family, Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> slow = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> tasks = Family(name="f", members=(Member(task="a", steps=9), Member(task="b", steps=9)))
    >>> arrays = columns(Problem(cluster=cluster, families=(tasks,), options=(slow,)))
    >>> arrays.sizes.tolist(), arrays.entry_rate.tolist()
    ([2.0], [2.0])
    """

    problem: Problem
    members: tuple[tuple[Member, ...], ...]
    families: tuple[str, ...]
    sizes: Numbers
    capacity: Numbers
    options: Indices
    kinds: Indices
    draws: Numbers
    prices: Numbers
    single: NDArray[np.bool_]
    groups: tuple[tuple[int, ...], ...]
    entry_column: Indices
    entry_group: Indices
    entry_rate: Numbers
    entry_tasks: Numbers

    def of_members(self, read: Callable[[Member], float]) -> Numbers:
        """What a group's tasks have in common, of each group."""
        return np.array([read(members[0]) for members in self.members])

    def rates(self, x: Numbers) -> Numbers:
        """The steps per second of each task of each group."""
        worked = self.entry_rate * x[self.entry_column]
        return np.bincount(self.entry_group, worked, minlength=self.sizes.size) / self.sizes

    def worths(self, units: Numbers) -> Numbers:
        """What each column does, in units of rate of the groups it runs."""
        worked = self.entry_rate / units[self.entry_group]
        return np.bincount(self.entry_column, worked, minlength=self.options.size).astype(np.float64)

    def references(self) -> Numbers:
        """For each group the steps per second that a task gets from one device of the average kind: the mean over
        kinds, by their devices, of its best rate per device alone."""
        means: Numbers = self._best_rates() @ (self.capacity[:-1] / self.capacity[:-1].sum())
        return means

    def equal_split_rates(self) -> Numbers:
        """For each group the steps per second on the same part of every kind for every task, devices that a task cannot
        use at once left idle."""
        counts = self.counts()
        shares = self.capacity[None, :-1] / (self.sizes.sum() * counts[:, None])
        shares /= np.maximum(1.0, shares.sum(axis=1))[:, None]
        rates: Numbers = (self._best_rates() * counts[:, None] * shares).sum(axis=1)
        return rates

    def counts(self) -> Numbers:
        """For each group the fewest devices on which a task runs alone."""
        fewest = np.full(self.sizes.size, np.inf)
        alone = self.single[self.entry_column]
        np.minimum.at(fewest, self.entry_group[alone], self.draws[self.entry_column[alone]])
        return fewest

    def allocation(
        self, x: Numbers, *, value: float = 0.0, bound: float | None = None, fills: bool = True
    ) -> Allocation:
        """The shares that `x` stands for."""
        options = self.problem.options
        used = [
            Share(option=options[self.options[column]], share=float(x[column]), groups=self.groups[column])
            for column in np.flatnonzero(x > _NOTHING).tolist()
        ]
        names = tuple(tuple([member.task for member in group]) for group in self.members)
        most = value if bound is None else bound
        # Devices that are left over would have to be paid for.
        fills = fills and not math.isfinite(self.problem.spend_limit_per_hour)
        return Allocation(shares=tuple(used), groups=names, value=value, bound=most, fills=fills)

    def _best_rates(self) -> Numbers:
        best = np.zeros((self.sizes.size, self.capacity.size - 1))
        alone = self.single[self.entry_column]
        column = self.entry_column[alone]
        np.maximum.at(best, (self.entry_group[alone], self.kinds[column]), self.entry_rate[alone] / self.draws[column])
        return best


def columns(problem: Problem, *, alike: Callable[[Member], Hashable] | None = None) -> Columns:
    """The arrays of a problem; members of a family for which `alike` gives the same are one group, without it all are.

    A gang is left out where its members do no more together than in turns on the same devices: with singles on the
    same kind and count, Σ (rate in the gang ÷ rate alone) ≤ 1 says so.
    """
    _refuse_bad_input(problem)
    by_family = {family.name: _split(family.members, alike) for family in problem.families if family.members}
    _refuse_without_options(problem, by_family)
    if by_family and problem.spend_limit_per_hour <= 0:
        refuse_too_little_money(problem)
    members = [group for groups in by_family.values() for group in groups]
    first = dict(zip(by_family, itertools.accumulate(map(len, by_family.values()), initial=0), strict=False))
    numbers = {name: range(first[name], first[name] + len(groups)) for name, groups in by_family.items()}
    return _assemble(problem, members, numbers)


def _assemble(problem: Problem, members: list[tuple[Member, ...]], numbers: dict[str, range]) -> Columns:
    kinds = {kind.name: number for number, kind in enumerate(problem.cluster.kinds)}
    prices = [kind.price_per_hour for kind in problem.cluster.kinds]
    alone = _rates_alone(problem.options) if any(len(option.families) > 1 for option in problem.options) else {}
    rows: list[tuple[int, int, float, float, bool, tuple[int, ...]]] = []
    entries: list[tuple[int, int, float, float]] = []
    for number, option in enumerate(problem.options):
        kind, families = kinds[option.kind], option.families
        row = (number, kind, float(option.count), option.count * prices[kind], len(families) == 1)
        if len(families) == 1:
            rate = 1 / option.step_seconds[0]
            for group in numbers.get(families[0], ()):
                entries.append((len(rows), group, rate, 1.0))
                rows.append((*row, (group,)))
            continue
        if not all(name in numbers for name in families) or not _pays(option, alone):
            continue
        for gang in _gangs(option, numbers, members):
            for group, rate, tasks in _parts(option, gang):
                entries.append((len(rows), group, rate, tasks))
            rows.append((*row, gang))
    table = list(zip(*rows, strict=True)) or [()] * 6
    parts = list(zip(*entries, strict=True)) or [()] * 4
    capacity = [float(count) for _, count in problem.cluster.counts()]
    return Columns(
        problem=problem,
        members=tuple(members),
        families=tuple(name for name, group in numbers.items() for _ in group),
        sizes=np.array([len(group) for group in members], dtype=float),
        capacity=np.array([*capacity, problem.spend_limit_per_hour]),
        options=np.array(table[0], dtype=np.int64),
        kinds=np.array(table[1], dtype=np.int64),
        draws=np.array(table[2], dtype=float),
        prices=np.array(table[3], dtype=float),
        single=np.array(table[4], dtype=bool),
        groups=tuple(table[5]),
        entry_column=np.array(parts[0], dtype=np.int64),
        entry_group=np.array(parts[1], dtype=np.int64),
        entry_rate=np.array(parts[2], dtype=float),
        entry_tasks=np.array(parts[3], dtype=float),
    )


def _split(members: Sequence[Member], alike: Callable[[Member], Hashable] | None) -> list[tuple[Member, ...]]:
    if alike is None:
        return [tuple(members)]
    keys = list(map(alike, members))
    if keys.count(keys[0]) == len(keys):
        return [tuple(members)]
    groups: dict[Hashable, list[Member]] = defaultdict(list)
    for key, member in zip(keys, members, strict=True):
        groups[key].append(member)
    return [tuple(group) for group in groups.values()]


def _rates_alone(options: Iterable[Option]) -> dict[tuple[str, str, int], float]:
    best: dict[tuple[str, str, int], float] = defaultdict(float)
    for option in options:
        if len(option.families) == 1:
            key = (option.families[0], option.kind, option.count)
            best[key] = max(best[key], 1 / option.step_seconds[0])
    return best


def _pays(option: Option, alone: dict[tuple[str, str, int], float]) -> bool:
    rates = [alone.get((name, option.kind, option.count), 0.0) for name in option.families]
    if not all(rates):
        return True
    return sum(1 / (seconds * rate) for seconds, rate in zip(option.step_seconds, rates, strict=True)) > 1


def _gangs(
    option: Option, numbers: dict[str, range], members: Sequence[tuple[Member, ...]]
) -> Iterable[tuple[int, ...]]:
    """The groups that may take the option's places. Where two places are of one family and the rates there are
    the same, their order does not matter."""
    found = itertools.product(*(numbers[name] for name in option.families))
    return (gang for gang in found if _is_gang(option, gang, members))


def _is_gang(option: Option, gang: tuple[int, ...], members: Sequence[tuple[Member, ...]]) -> bool:
    places = list(zip(option.families, option.step_seconds, gang, strict=True))
    for one, other in itertools.combinations(places, 2):
        if one[:2] == other[:2] and one[2] > other[2]:
            return False
    return all(len(members[group]) >= times for group, times in Counter(gang).items())


def _parts(option: Option, gang: tuple[int, ...]) -> Iterable[tuple[int, float, float]]:
    rates: dict[int, float] = defaultdict(float)
    for group, seconds in zip(gang, option.step_seconds, strict=True):
        rates[group] += 1 / seconds
    times = Counter(gang)
    return ((group, rate, float(times[group])) for group, rate in rates.items())


def _refuse_bad_input(problem: Problem) -> None:
    names = [member.task for family in problem.families for member in family.members]
    if len(set(names)) < len(names):
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        raise InvalidWorkload(f"tasks must have names of their own; {_some(twice)} there more than once.")
    for kind in problem.cluster.kinds:
        if not 0 <= kind.price_per_hour < math.inf:
            raise InvalidWorkload(
                f"the price of kind {kind.name!r} must be a number of at least 0, got {kind.price_per_hour}."
            )
    if not problem.spend_limit_per_hour >= 0:
        raise InvalidWorkload(f"a limit on spending must be at least 0 an hour, got {problem.spend_limit_per_hour}.")
    bad = [m.task for f in problem.families for m in f.members if m.steps <= 0 or not m.weight > 0]
    if bad:
        raise InvalidWorkload(f"tasks must have a weight > 0 and steps left; {_some(bad)} without.")
    known = {kind.name for kind in problem.cluster.kinds}
    strange = sorted({option.kind for option in problem.options} - known)
    if strange:
        raise InvalidWorkload(f"options must be on kinds of the cluster, {sorted(known)}; found {_some(strange)} not.")


def refuse_too_little_money(problem: Problem) -> None:
    """Say what the cheapest option costs, where the limit does not pay for any that a policy could give.

    >>> from dovetail.planning.share.policies import example
    >>> refuse_too_little_money(example())
    """
    there = {family.name for family in problem.families if family.members}
    prices = {kind.name: kind.price_per_hour for kind in problem.cluster.kinds}
    mine = [option for option in problem.options if option.families[0] in there and len(option.families) == 1]
    least = min(mine, key=lambda option: option.count * prices[option.kind])
    needed = least.count * prices[least.kind]
    if needed > problem.spend_limit_per_hour:
        raise NoFeasiblePlan(
            f"what may be spent must pay for some task, at least {needed:g} an hour ({least.families[0]!r} on "
            f"{least.count} {least.kind!r}); the limit is {problem.spend_limit_per_hour:g}. Raise it, or choose a "
            "policy that gives parts of the time."
        )


def _refuse_without_options(problem: Problem, by_family: dict[str, list[tuple[Member, ...]]]) -> None:
    runs = {option.families[0] for option in problem.options if len(option.families) == 1}
    missing = [name for name in by_family if name not in runs]
    if missing:
        tasks = [member.task for name in missing for group in by_family[name] for member in group]
        raise NoFeasiblePlan(
            f"every task must have an option alone with a rate above 0 on some kind of "
            f"{sorted(kind.name for kind in problem.cluster.kinds)}; {_some(tasks)} without "
            f"(families {', '.join(map(repr, missing[:_SHOWN]))}). Measure them, or take them out."
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more} {'is' if len(names) == 1 else 'are'}"
