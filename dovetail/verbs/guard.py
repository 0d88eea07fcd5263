"""What `--keep` does before a workload runs: pairs of trainings show whether approximations keep to its tolerances.

Of each family that would be trained with approximations, one task is trained with several seeds, each once exactly and
once so, until `planning/paired_differences` can tell. Pairs are ordinary workloads in stores of their own inside the
workload's, so that they are planned, stopped and resumed as others are; what was found goes into the workload's store,
with the device time that it took. Nobody is asked twice.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dovetail.control import Result
from dovetail.control.state.ledger import shows
from dovetail.describe import Search, check_names
from dovetail.metrics.account import account
from dovetail.planning import Problem
from dovetail.planning.paired_differences import MOST_PAIRS, Verdict, judge
from dovetail.store import ControllerLock, Store
from dovetail.verbs.make_plan import MeasuredWorkload, Planner, solve
from dovetail.vocabulary import DovetailError, Event, InvalidWorkload, Profile, Stop, Task, TaskId, Workload
from dovetail.vocabulary.approximations import Approximate, names_of, split_knobs
from dovetail.vocabulary.events import ApproximationJudged, DevicesReleased
from dovetail.vocabulary.work import suggest_goal

FOLDER = "guard"
# With fewer pairs nothing can be told; then a few at a time, so that devices have something to do side by side.
FIRST_PAIRS, MORE_PAIRS = 4, 2

TrainPairs = Callable[[Workload, Path], Result]
"""What carries a workload to its end, with this folder as its store."""


def guard(found: MeasuredWorkload, *, planner: Planner, home: Path, train: TrainPairs, fresh: bool = False) -> None:
    """Judge what the plan of a measured workload would approximate and nobody has judged yet; put that on record."""
    keep, profiles = found.workload.keep, found.profiles
    _check_reported(keep, found.problem, profiles)
    with Store(home) as opened:
        known = [event for _, event in opened.events() if isinstance(event, ApproximationJudged)]
    if fresh:
        shutil.rmtree(home / FOLDER, ignore_errors=True)
        known = []
    for family, way, task in approximated(found, planner):
        if not any((each.family, each.approximate) == (family, way) and shows(each, keep) for each in known):
            folder = home / FOLDER / f"{family}-{way}"
            _record(home, _judge_pairs(found.workload, family, way, task, folder=folder, train=train), folder)


def approximated(found: MeasuredWorkload, planner: Planner) -> Iterator[tuple[str, Approximate, Task]]:
    """Each family that its plan would approximate, how, and the first task of it that would be."""
    schedule = solve(found.problem, found.workload, planner).schedule
    families = {one.task: family.measured_as for family in found.problem.families for one in family.members}
    tasks = {task.identity: task for task in found.workload.tasks}
    seen: set[tuple[str, Approximate]] = set()
    for placement in schedule.placements if schedule is not None else ():
        way = split_knobs(placement.option.knobs)[0]
        for task in placement.tasks if way else ():
            if (pair := (families[task], way)) not in seen:
                seen.add(pair)
                yield *pair, tasks[task]


def _check_reported(keep: Mapping[str, float], problem: Problem, profiles: Iterable[Profile]) -> None:
    """Refuse a tolerance for a metric that a family never reports."""
    wanted = {family.measured_as for family in problem.families}
    reported: dict[str, set[str]] = {}
    for profile in profiles:
        if profile.family in wanted:
            reported.setdefault(profile.family, set()).update(profile.metrics)
    for metric in keep:
        for names in reported.values():
            if metric not in names:
                raise DovetailError(
                    f"a tolerance (--keep, keep=) must be for a metric that evaluation reports; {metric!r} is never "
                    f"reported, but {sorted(names) or 'nothing'}. Add it to what evaluate gives, or keep another."
                )


def _judge_pairs(
    workload: Workload, family: str, way: Approximate, task: Task, *, folder: Path, train: TrainPairs
) -> ApproximationJudged:
    """Train pairs until every metric has a verdict, or one is against it."""
    check_names(task.program, ["seed"])
    count, verdicts = FIRST_PAIRS, dict[str, Verdict]()
    while count <= MOST_PAIRS:
        seeded = [_seeded(task, number) for number in range(count)]
        results = [train(_twins(workload, seeded, each), folder / (each or "exact")) for each in ("", way)]
        verdicts = {
            metric: judge(differences(*results, metric=metric), tolerance=tolerance, most_pairs=MOST_PAIRS)
            for metric, tolerance in workload.keep.items()
        }
        against = any(verdict.keeps is False for verdict in verdicts.values())
        if against or all(verdict.keeps for verdict in verdicts.values()):
            break
        count += MORE_PAIRS
    return ApproximationJudged(
        at_seconds=time.time(),
        family=family,
        approximate=way,
        keep=workload.keep,
        keeps=all(verdict.keeps for verdict in verdicts.values()),
        why="; ".join(f"{metric}: {verdict.why}" for metric, verdict in verdicts.items()),
        pairs=min(count, MOST_PAIRS),
    )


def differences(exact: Result, approximate: Result, *, metric: str) -> list[float]:
    """By how much the metric is worse where tasks were trained with approximations, pair by pair."""
    failed = [task for task in exact.tasks if task.status != "finished"]
    if failed:
        raise DovetailError(
            f"trainings that approximations are compared with must end well; that with {failed[0].name} has "
            f"{failed[0].status}: {failed[0].reason}"
        )
    sign = 1.0 if suggest_goal(metric) == "max" else -1.0
    return [sign * (task.value(metric) - approximate[task.name].value(metric)) for task in exact.tasks]


def _seeded(task: Task, number: int) -> Task:
    """The task with another seed, trained to its last step whatever its metrics: both of a pair must come as far."""
    seed = task.seed + number
    stop = Stop(steps=task.stop.steps, epochs=task.stop.epochs)
    return dataclasses.replace(task, name=f"seed={seed}", parameters={**task.parameters, "seed": seed}, stop=stop)


def _twins(workload: Workload, tasks: Sequence[Task], way: Approximate) -> Workload:
    return Workload(
        name=way or "exact",
        tasks=tuple(tasks),
        techniques=workload.techniques,
        device_memory_bytes=workload.device_memory_bytes,
        allow=names_of(way),
        approximate=way,
    )


def _record(home: Path, judged: ApproximationJudged, folder: Path) -> None:
    """Put on record what was found and the orders that it took, under their own purpose."""
    released: list[Event] = []
    for place in sorted(folder.iterdir()):
        with Store(place) as opened:
            orders = [event for _, event in opened.events() if isinstance(event, DevicesReleased)]
        named = f"{FOLDER}-{folder.name}-{place.name}"
        released += [
            dataclasses.replace(each, task=TaskId(""), purpose=FOLDER, placement=f"{named}-{each.placement}")
            for each in orders
        ]
    orders = [event for event in released if isinstance(event, DevicesReleased)]
    devices = len({device for each in orders for device in each.devices})
    seconds = account(orders, devices=devices).whole_seconds
    with ControllerLock(home), Store(home, write=True) as opened:
        opened.add(events=[*released, dataclasses.replace(judged, seconds=seconds)])


def refuse_search(described: Workload | Search) -> Workload:
    """The workload that was described; tolerances are refused for what has no tasks yet."""
    if not isinstance(described, Workload):
        raise InvalidWorkload(
            "tolerances (--keep, keep=) must go with a workload whose tasks are known; those of a search come as "
            "results do. Search exactly, or allow approximations without them."
        )
    return described
