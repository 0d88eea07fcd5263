"""What has to be learned before planning: each task's family, then every option of every family.

Gives orders and, where a task turns out to be impossible, the reason; the loop runs and records them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

from dovetail.control.state.ledger import Ledger
from dovetail.describe import versions
from dovetail.engines import MemberOrder
from dovetail.planning import Trial, trials
from dovetail.vocabulary import Cluster, Fingerprint, FrozenDict, InvalidWorkload, Task, TaskId, Workload

Fields = dict[str, Any]
"""The fields of an order, all but its name."""


def fingerprints(
    tasks: Mapping[TaskId, Task], ledger: Ledger, cluster: Cluster, *, seen: Container[str] = ()
) -> list[Fields]:
    """Orders that build every task whose family is not known under the versions installed now, one a device. Those
    `seen` by this controller are not asked again, whatever versions their workers have.

    A task that was lost on the way gets an order of its own, so that a program that kills its worker takes
    nobody along.
    """
    unknown = [
        task
        for task in tasks
        if not ledger.rests(task)
        and (
            (known := ledger[task].fingerprint) is None or (task not in seen and known.versions not in ("", versions()))
        )
    ]
    suspects = [task for task in unknown if ledger[task].losses]
    others = [task for task in unknown if not ledger[task].losses]
    count = len(cluster.devices)
    if not count:
        return []  # they are built once there is a device
    shares = [*(others[number::count] for number in range(count)), *([task] for task in suspects)]
    return [
        {
            "purpose": "fingerprint",
            "members": tuple(MemberOrder(task=tasks[task]) for task in share),
            "devices": (cluster.devices[number % count].name,),
        }
        for number, share in enumerate(shares)
        if share
    ]


def missing_trials(
    tasks: Mapping[TaskId, Task],
    ledger: Ledger,
    cluster: Cluster,
    *,
    may: Callable[..., bool] = lambda *_: True,
    keep: Callable[..., bool] = lambda *_: True,
    expected: Callable[[Mapping[str, int]], Mapping[str, int]] = lambda counts: counts,
    allowed: Mapping[str, Collection[str]] = FrozenDict(),
) -> tuple[Trial, ...]:
    """The options not measured yet of the families that still have something to train. `may` says of a technique and
    its knobs whether they are allowed, and `keep` whether what was measured so is exact enough: if not, it is measured
    anew. Gangs are of as many tasks as are `expected`; `allowed` says, by family, how it may be approximated. A program
    whose first trial ends every worker is tried in no other way."""
    able = Counter(known.family for task in tasks if (known := _known(task, ledger)))
    profiles = [each for each in ledger.profiles() if keep(each.technique, each.knobs)]
    missing = trials(
        able, profiles, cluster, failed=ledger.rejections(), members=expected(able), may=may, allowed=allowed
    )
    deadly = ledger.deadly()
    return tuple(trial for trial in missing if (trial.family, trial.kind) not in deadly)


def trial_orders(
    wanted: Iterable[Trial], tasks: Mapping[TaskId, Task], ledger: Ledger, cluster: Cluster
) -> list[Fields]:
    """An order for each trial, with the first task of its family that has not ended."""
    able = _able(tasks, ledger)
    return [_trial(trial, able[trial.family], cluster) for trial in wanted]


def _able(tasks: Mapping[TaskId, Task], ledger: Ledger) -> dict[str, Task]:
    """Of each family a task that has something to train: the first that waits, or else the first that runs."""
    found: dict[str, Task] = {}
    for task, record in sorted(tasks.items(), key=lambda item: ledger[item[0]].status == "running"):
        if known := _known(task, ledger):
            found.setdefault(known.family, record)
    return found


def _known(task: TaskId, ledger: Ledger) -> Fingerprint | None:
    """What is known of a task that has something to train."""
    return None if ledger.rests(task) else ledger[task].fingerprint


def impossible(workload: Workload, ledger: Ledger) -> dict[TaskId, str]:
    """The tasks that cannot end as they were told to, with the reason: epochs without a length, a target that
    evaluation never reports."""
    reported: dict[str, set[str]] = {}
    for profile in ledger.profiles():
        reported.setdefault(profile.family, set()).update(profile.metrics)
    found = {}
    for task in workload.tasks:
        known = ledger[task.identity].fingerprint
        if known and not ledger.rests(task.identity):
            reason = _no_length(task, known) or _no_metric(task, workload, reported.get(known.family, set()))
            if reason:
                found[task.identity] = reason
    return found


def _trial(trial: Trial, task: Task, cluster: Cluster) -> Fields:
    return {
        "purpose": "measure",
        "members": (MemberOrder(task=task),),
        # As many as it wants: which ones is seen when they are free.
        "devices": tuple(device.name for device in cluster.of_kind(trial.kind)[: trial.count]),
        "technique": trial.technique,
        "knobs": trial.knobs,
        "family": trial.family,
    }


def _no_length(task: Task, fingerprint: Fingerprint) -> str:
    try:
        task.stop.last_step(fingerprint.steps_per_epoch)
    except InvalidWorkload as error:
        return str(error)
    return ""


def _no_metric(task: Task, workload: Workload, reported: set[str]) -> str:
    wanted = [task.stop.metric, workload.halving.metric if workload.halving else None]
    for metric in wanted:
        if metric is not None and reported and metric not in reported:
            return (
                f"evaluation must report the metric {metric!r} that this task is judged by; it reports "
                f"{sorted(reported)}. Add it to what evaluate gives, or change the target."
            )
    return ""
