"""`dt.race`: contestants to a target by the clock, each with several seeds, and what came of it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dovetail.control import Reconciliation, Settings
from dovetail.engines import Engine
from dovetail.metrics.progress import fold
from dovetail.metrics.race.outcome import RaceResult, judge_race
from dovetail.metrics.race.run_clock import CLOCKS, fold_clocks
from dovetail.planning import PLANNERS, Problem
from dovetail.planning.options.kinds import with_prices
from dovetail.store import Store
from dovetail.verbs import run_workload
from dovetail.verbs.choices import check_name, choose
from dovetail.verbs.engine_places import Given, MakeEngine
from dovetail.verbs.race_entries import RaceEntries, enter_race
from dovetail.verbs.race_exports import check_export, export_race
from dovetail.vocabulary import Cluster, DovetailError, Plan, TrainingError, Workload
from dovetail.vocabulary.redact import Redactor

Planner = Callable[[Problem], Plan]


def race(
    what: Given,
    *,
    until: str | None = None,
    seeds: int | Sequence[int] | None = None,
    reference: str = "",
    clock: str = "mlperf",
    devices: int | None = None,
    export: str | Iterable[str] = (),
    log: Mapping[str, Any] = MappingProxyType({}),
    prices: Mapping[str, float] = MappingProxyType({}),
    techniques: str | Iterable[str] | None = None,
    device_memory: str | int | None = None,
    cluster: Cluster | None = None,
    store: str | Path = ".dovetail",
    settings: Settings | None = None,
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
    planner: str | Planner = "proportionate",
    progress: bool = True,
    fresh: bool = False,
    before: Callable[[Reconciliation], None] = lambda found: None,
) -> RaceResult:
    """Race a workload's tasks to a target. Stop it and call it again to go on.

    Each set of parameters is a contestant, and runs with several seeds, which its program takes as parameter `seed`,
    until its metric meets the target, such as `until="accuracy>=0.94"`, or its steps or epochs are over: then it never
    arrives, and its time is infinite. `seeds` are how many runs each has, or which seeds; 5 without it, or those that
    the workload has.

    Where every second of a run went (`start`, `compile`, `read`, `train`, `evaluate`, `save`, `interrupted`) is on
    record, so that one run gives the time by both clocks: `mlperf`, from the first step on, evaluations counted, and
    `dawnbench`, without evaluations and checkpoints. `clock` says by which the race is won. Others are compared with
    the `reference`, the first contestant where none is named: how much of a speed-up is of seconds a step, how much of
    steps, and whether fewer steps may be chance.

    Every run has a device for itself, or as many as `devices` says, because the time of one that shares a device is its
    neighbours' too; `techniques` allow others. `prices` of an hour of one device, by kind, give the spend. `export` is
    `mlperf:DIR` or `dawnbench:DIR`, or several of these; `log` has keys and values to write there that a run cannot
    know. The rest is as in `dt.run`.

    >>> from dovetail.describe import grid
    >>> race(grid("dovetail.testing.programs:dropout", rate=[0.1, 0.2], steps=9))
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: a race must have a metric and a target to reach; this workload has none. \
Give --until 'accuracy>=0.94', in Python until='accuracy>=0.94', with a metric that the programs' evaluate reports.
    """
    check_name("a clock (--clock, clock=)", clock, CLOCKS)
    exports = [export] if isinstance(export, str) else list(export)
    for each in exports:
        check_export(each, log)
    if devices is not None and devices < 1:
        raise DovetailError(f"--devices (devices=) must be a whole number of at least 1, got {devices}.")
    make_plan = choose("planner", planner, PLANNERS)
    entered: list[RaceEntries] = []

    def enter() -> Workload:
        entries = enter_race(what() if callable(what) else what, until=until, seeds=seeds, devices=devices)
        if reference:
            check_name("a reference (--reference, reference=)", reference, entries.contestants)
        entered.append(entries)
        return entries.workload

    run_workload.run(
        enter if callable(what) else enter(),
        prices=prices,
        techniques=techniques,
        device_memory=device_memory,
        cluster=cluster,
        store=store,
        settings=settings,
        engine=engine,
        address=address,
        planner=lambda problem: make_plan(with_even_devices(problem, devices=devices)),
        progress=progress,
        raise_on_failure=False,
        fresh=fresh,
        before=before,
    )
    found = judge(entered[0], store=Path(store), reference=reference, clock=clock, prices=prices)
    _check_failures(found)
    for each in exports:
        export_race(found, each, said=log)
    return found


def judge(entries: RaceEntries, *, store: Path, reference: str, clock: str, prices: Mapping[str, float]) -> RaceResult:
    """What a store says of a race."""
    with Store(store) as opened:
        events = [event for _, event in opened.events()]
        points = {task.identity: opened.points(task.identity) for task in entries.workload.tasks}
        cluster = opened.hardware("cluster", Cluster)
    return judge_race(
        entries.workload.name,
        entries.contestants,
        stop=entries.stop,
        clocks=fold_clocks(events),
        progress=fold(events),
        points=points,
        prices=_device_prices(with_prices(cluster, prices)) if cluster is not None else {},
        reference=reference,
        clock=clock,
    )


def with_even_devices(problem: Problem, *, devices: int | None) -> Problem:
    """The problem with options of as many devices as is wanted for each run, or of the fewest that it fits on: runs of
    one contestant on unlike numbers of devices would differ in time for no reason of its own.

    >>> from dovetail.vocabulary import Kind, Option
    >>> how = {"families": ("f",), "technique": "resident", "kind": "cpu"}
    >>> options = [Option(**how, count=count, step_seconds=(1 / count,)) for count in (1, 2)]
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> problem = Problem(cluster=cluster, families=(), options=tuple(options))
    >>> [[each.count for each in with_even_devices(problem, devices=devices).options] for devices in (None, 2)]
    [[1], [2]]
    """
    counts: dict[tuple[tuple[str, ...], str], set[int]] = {}
    for option in problem.options:
        counts.setdefault((option.families, option.kind), set()).add(option.count)
    wanted = {key: devices if devices in found else min(found) for key, found in counts.items()}
    kept = tuple(option for option in problem.options if option.count == wanted[option.families, option.kind])
    return dataclasses.replace(problem, options=kept)


def _device_prices(cluster: Cluster) -> dict[str, float]:
    by_kind = {kind.name: kind.price_per_hour for kind in cluster.kinds}
    return {device.name: by_kind[device.kind] for device in cluster.devices if by_kind[device.kind] > 0}


def _check_failures(found: RaceResult) -> None:
    """Raise where there is nothing to judge."""
    runs = [run for contestant in found.contestants for run in contestant.runs]
    if all(run.status == "failed" for run in runs):
        redact = Redactor(run.task.parameters for run in runs)
        reasons = list(dict.fromkeys(redact(f"\n  {run.task.name}: {run.reason}") for run in runs))
        raise TrainingError(f"a race must have runs that end well; all {len(runs)} failed:{''.join(reasons[:5])}")
