"""Which trials are worth running. Knows the problem at hand and how long its schedule is; runs nothing."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from dovetail.plan.bound import lower_bound
from dovetail.plan.candidates import Trial
from dovetail.plan.predict import fuse
from dovetail.plan.problem import Problem
from dovetail.vocabulary import Option

# Predictions are about this good, so a smaller gain would not be seen.
WORTH = 0.05
# What a trial takes beside building its task.
TRIAL_SECONDS = 1.5


def worthwhile(missing: Sequence[Trial], problem: Problem, *, makespan_seconds: float) -> tuple[Trial, ...]:
    """Which of these trials could shorten a schedule of this length by more than `WORTH`.

    A family's first trial on a kind always could, on as few devices as it may have. More devices at best divide its
    time by their number, and fusing at best takes no longer than one task alone, so where even that leaves the bound
    close to the schedule at hand, or saves less than the trials take, measuring how far from it they are buys nothing.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
    >>> pair = Family(name="f", members=(Member(task="a", steps=10), Member(task="b", steps=10)))
    >>> more = Trial(family="f", technique="resident", kind="cpu", count=2)
    >>> worthwhile([more], Problem(cluster=cluster, families=(pair,), options=(one,)), makespan_seconds=10.0)
    ()
    """
    known: dict[tuple[str, str], Option] = {}
    for option in problem.options:
        place = option.families[0], option.kind
        if len(option.families) == 1 and _device_seconds(option) < _device_seconds(known.get(place)):
            known[place] = option
    first = {}
    for trial in sorted(missing, key=lambda trial: -trial.count):
        if (trial.family, trial.kind) not in known:
            first[trial.family, trial.technique, trial.kind] = trial
    if first or not missing:
        return tuple(trial for trial in missing if trial in first.values())
    tasks = Counter({family.name.partition("@")[0]: len(family.members) for family in problem.families})
    found: list[Trial] = []
    for technique in dict.fromkeys(trial.technique for trial in missing):
        mine = [trial for trial in missing if trial.technique == technique]
        ideal = tuple(_ideal(known[trial.family, trial.kind], trial, tasks[trial.family]) for trial in mine)
        bound_seconds = lower_bound(dataclasses.replace(problem, options=(*problem.options, *ideal)))
        gain_seconds = makespan_seconds - bound_seconds
        takes_seconds = sum((TRIAL_SECONDS + option.start_seconds) * option.count for option in ideal)
        if gain_seconds > max(WORTH * bound_seconds, takes_seconds / len(problem.cluster.devices)):
            found += mine
    return tuple(found)


def _device_seconds(option: Option | None) -> float:
    """What a step takes of all devices together: the least shows what perfect scaling would do."""
    return option.count * option.step_seconds[0] if option is not None else math.inf


def _ideal(option: Option, trial: Trial, tasks: int) -> Option:
    """The best that a trial could show for a family of so many tasks."""
    (seconds,) = option.step_seconds
    share = option.count / trial.count
    gang = max(1, min(fuse.TRIED, tasks)) if trial.technique == "fuse" else 1
    return dataclasses.replace(
        option,
        families=option.families * gang,
        technique=trial.technique,
        count=trial.count,
        step_seconds=(seconds * share,) * gang,
        cores=0,
    )
