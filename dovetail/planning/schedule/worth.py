"""Which trials are worth running: those that could shorten the plan by more than they take. Runs nothing."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from dovetail.planning.options import Trial
from dovetail.planning.problem import Problem
from dovetail.planning.schedule.bound import lower_bound
from dovetail.planning.schedule.effort import plan_at_once
from dovetail.planning.techniques import fuse
from dovetail.vocabulary import RANKED, Option

# Predictions are about this good, so a smaller gain would not be seen.
WORTH = 0.05
# What a trial takes beside building its task.
TRIAL_SECONDS = 1.5
# What a new process takes until it can train. Who has several cores of a CPU is one of its own.
WORKER_SECONDS = 4.0


def worthwhile(missing: Sequence[Trial], problem: Problem, *, budget_seconds: float = math.inf) -> tuple[Trial, ...]:
    """Which of these trials could end the tasks of a problem sooner by more than `WORTH`, and together take no longer
    than `budget_seconds`: those first that could save most for what they take.

    A family's first trial on a kind always could, on as few devices as it may have. More devices at best divide its
    time by their number, and fusing at best takes no longer than one task alone, so where even that makes no shorter
    plan, or saves less than the trials take, measuring how far from it they are buys nothing.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
    >>> pair = Family(name="f", members=(Member(task="a", steps=10), Member(task="b", steps=10)))
    >>> more = Trial(family="f", technique="resident", kind="cpu", count=2)
    >>> worthwhile([more], Problem(cluster=cluster, families=(pair,), options=(one,)))
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
    problem = dataclasses.replace(problem.without_deadlines(), objective="makespan")
    found, now_seconds = list[tuple[float, float, list[Trial]]](), _makespan_seconds(problem)
    for technique in dict.fromkeys(trial.technique for trial in missing):
        mine = [trial for trial in missing if trial.technique == technique]
        ideal = tuple(_ideal(known[trial.family, trial.kind], trial, tasks[trial.family]) for trial in mine)
        hoped = dataclasses.replace(problem, options=(*problem.options, *ideal))
        takes_seconds = _takes_seconds(ideal) / len(problem.cluster.devices)
        least_seconds = max(WORTH * now_seconds, takes_seconds)
        # The bound is quicker, and mostly enough to say no; where its own gap is large, a plan says so.
        if now_seconds - lower_bound(hoped) > least_seconds:
            saved_seconds = now_seconds - _makespan_seconds(hoped)
            if saved_seconds > least_seconds:
                found.append((saved_seconds / takes_seconds, takes_seconds, mine))
    chosen: list[Trial] = []
    for _, takes_seconds, trials in sorted(found, key=lambda each: -each[0]):
        if takes_seconds <= budget_seconds:
            chosen += trials
            budget_seconds -= takes_seconds
    return tuple(trial for trial in missing if trial in chosen)


def _makespan_seconds(problem: Problem) -> float:
    schedule = plan_at_once(problem).schedule
    assert schedule is not None
    return schedule.makespan_seconds


def _takes_seconds(ideal: Sequence[Option]) -> float:
    """The device seconds of these trials, and of the processes that they need."""
    wide = {option.count for option in ideal if option.count > 1 and option.technique not in RANKED}
    return WORKER_SECONDS * sum(wide) + sum((TRIAL_SECONDS + option.start_seconds) * option.count for option in ideal)


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
