"""Which trials are worth running: those that could shorten the plan by more than they take. Runs nothing."""

import dataclasses
import math
from collections.abc import Sequence

from dovetail.planning.problem import Problem
from dovetail.planning.schedule.bounds import lower_bound
from dovetail.planning.schedule.plan import plan_list
from dovetail.planning.techniques import Trial, spec_of
from dovetail.vocabulary import Option
from dovetail.vocabulary.approximations import KNOB

# Predictions are about this good, so a smaller gain would not be seen.
WORTH = 0.05
# What a trial takes beside building its task.
TRIAL_SECONDS = 1.5
# What a new process takes until it can train. Who has several cores of a CPU is one of its own.
WORKER_SECONDS = 4.0
# What an approximation leaves of a step at best: nobody has seen one that takes less.
HOPE = 0.5


def worthwhile(missing: Sequence[Trial], problem: Problem, *, budget_seconds: float = math.inf) -> tuple[Trial, ...]:
    """Which of these trials could end the tasks of a problem sooner by more than `WORTH`, and together take no longer
    than `budget_seconds`: those first that could save most for what they take.

    A family's first trial on a kind always could, on as few devices as it may have. Of others each technique says what
    they could show at best, so where even that makes no shorter plan, or saves less than the trials take, measuring how
    far from it they are buys nothing.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
    >>> pair = Family(name="f", members=(Member(task="a", steps=10), Member(task="b", steps=10)))
    >>> more = Trial(family="f", technique="resident", kind="cpu", count=2)
    >>> worthwhile([more], Problem(cluster=cluster, families=(pair,), options=(one,)))
    ()
    """
    # Tasks that keep their threads are families of their own, of which nothing is measured apart.
    measured = {family.name: family.measured_as for family in problem.families}
    known: dict[tuple[str, str], Option] = {}
    for option in problem.options:
        place = measured.get(option.families[0], option.families[0]), option.kind
        if len(option.families) == 1 and _device_seconds(option) < _device_seconds(known.get(place)):
            known[place] = option
    first = {}
    for trial in sorted(missing, key=lambda trial: -trial.count):
        if (trial.family, trial.kind) not in known:
            first[trial.family, trial.technique, trial.kind] = trial
    if first or not missing:
        return tuple(trial for trial in missing if trial in first.values())
    problem = dataclasses.replace(problem.without_deadlines(), objective="makespan")
    found, now_seconds = list[tuple[float, float, list[Trial]]](), _makespan_seconds(problem)
    for sort in dict.fromkeys(map(_sort, missing)):
        mine = [trial for trial in missing if _sort(trial) == sort]
        ideal = tuple(_ideal(known[trial.family, trial.kind], trial, problem.options) for trial in mine)
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


def _ideal(known: Option, trial: Trial, options: Sequence[Option]) -> Option:
    ideal = spec_of(trial.technique).ideal(known, trial, options)
    if not trial.knobs.get(KNOB):
        return ideal
    return dataclasses.replace(ideal, step_seconds=tuple(HOPE * seconds for seconds in ideal.step_seconds))


def _makespan_seconds(problem: Problem) -> float:
    schedule = plan_list(problem).schedule
    assert schedule is not None
    return schedule.makespan_seconds


def _takes_seconds(ideal: Sequence[Option]) -> float:
    """The device seconds of these trials, and of the processes that they need."""
    wide = {option.count for option in ideal if option.count > 1 and not spec_of(option.technique).ranked}
    return WORKER_SECONDS * sum(wide) + sum((TRIAL_SECONDS + option.start_seconds) * option.count for option in ideal)


def _device_seconds(option: Option | None) -> float:
    """What a step takes of all devices together: the least shows what perfect scaling would do."""
    return option.count * option.step_seconds[0] if option is not None else math.inf


def _sort(trial: Trial) -> tuple[str, tuple[str, ...]]:
    """What trials are judged together: those of a technique with the same choices to make, of all families."""
    return trial.technique, tuple(sorted(trial.knobs))
