"""`dt.run`: a workload, or the plan of one, carried to its end."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dovetail.control import Reconciliation, Result, Settings, open_result
from dovetail.control.searching.searching import make_source, take_up
from dovetail.control.searching.study_file import check_optuna
from dovetail.describe import Search
from dovetail.engines import Engine
from dovetail.planning import PLANNERS, Problem
from dovetail.store import settle_checkpoints
from dovetail.trackers import check_trackers
from dovetail.verbs.amendments import amend, is_elsewhere, limit_cluster, price_cluster
from dovetail.verbs.choices import choose
from dovetail.verbs.controller import Observer, ensure_directory, open_controller, writing_to
from dovetail.verbs.engine_places import Given, MakeEngine, described_programs, open_place, read_workload
from dovetail.verbs.guard import guard, refuse_search
from dovetail.verbs.make_plan import Planner, measure_workload
from dovetail.verbs.run_callbacks import OnEnd, OnEvaluate, OnMetric, RunCallbacks
from dovetail.verbs.tracking import trackers_beside
from dovetail.vocabulary import Cluster, DovetailError, Plan, TrainingError, Workload
from dovetail.vocabulary.redact import Redactor


def run(
    what: Plan | Given | Search | Callable[[], Workload | Search],
    *,
    objective: str | None = None,
    weights: Mapping[str, float] = MappingProxyType({}),
    deadlines: Mapping[str, float] = MappingProxyType({}),
    prices: Mapping[str, float] = MappingProxyType({}),
    techniques: str | Iterable[str] | None = None,
    device_memory: str | int | None = None,
    allow: str | Iterable[str] | None = None,
    keep: Mapping[str, float] = MappingProxyType({}),
    cluster: Cluster | None = None,
    store: str | Path = ".dovetail",
    settings: Settings | None = None,
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
    planner: str | Callable[[Problem], Plan] = "proportionate",
    progress: bool = True,
    raise_on_failure: bool = True,
    fresh: bool = False,
    track: str | Iterable[str] = (),
    track_models: bool = False,
    on_metric: OnMetric | None = None,
    on_evaluate: OnEvaluate | None = None,
    on_end: OnEnd | None = None,
    before: Callable[[Reconciliation], None] = lambda found: None,
    observe: Observer | None = None,
) -> Result:
    """Run a plan, or measure, plan and run a workload or a search. Stop it and run it again to go on.

    Of a plan, its schedule is what runs: the placements that `print(plan)` shows, on those devices, in that order.
    Where it does not apply any more, because tasks have ended or were edited meanwhile, or an option has turned out not
    to fit, another plan is made for the same objective, weights, deadlines and prices, and the event that records it
    says why. So it is when something changes on the way.

    Of a search (`dt.Search`) tasks are asked for until there are as many as it wants, those of earlier runs included.
    One that fails, by a learning rate too large for it, say, is a trial without a value: only where all fail is that an
    error.

    What is wanted of the whole may be said here as in `dt.workload`, and counts more than what the workload says:
    `objective`, `weights`, `deadlines` in seconds from now, `techniques`, `device_memory`, `allow`. `prices` are of an
    hour of one device, by kind. A run that cannot keep its deadlines is refused, and one that comes to be late goes on
    as little late as it can.

    With `keep`, by how much each metric may become worse (`{"accuracy": 0.002}`), approximations that are allowed are
    used only where that was shown: before the run, one task of each family is trained in pairs, exactly and so with the
    same seed, until it can be told with 95% confidence. Else the family stays exact; `result.judged` says why.

    `engine` is `local`, or `ray` for the Ray cluster at `address`: `host:port`, `auto` for the one that this machine
    belongs to, `local` for one that is started for this run; or an `Engine` of your own, or what makes one of a
    cluster and a store's directory. `planner` is a name or a function from a problem to a plan.

    Raises `TrainingError` with the reasons where tasks have failed, once all others have ended, and `KeyboardInterrupt`
    where it was stopped before the end, once all is saved. With `raise_on_failure=False` the result says which failed
    instead.

    What has finished is not trained again, and what was stopped goes on, as long as its program (with all that it
    reaches) and its parameters are the same. With `fresh=True` every task is trained anew: what the store has of it,
    checkpoints and metrics, is removed.

    `track` names trackers that are told of it while it goes on, each by a process of its own that cannot hold up
    training: `mlflow:./mlruns` (or any tracking URI), `wandb:PROJECT`, `tensorboard:./runs`. What they missed is sent
    later, nothing is sent twice. With `track_models` they are given the trained models too.

    In this process, `on_metric(task, name, step, value)` is told each value that a task records, `on_evaluate(task,
    step, metrics)` what each evaluation gave, and `on_end(task_result)` what came of a task that has ended. An error in
    one of them stops the run, once all is saved, and is raised.

    `before` is told what changed since the store last saw this workload. With `progress`, a live table shows where
    every task stands. A second Ctrl-C ends at once what the first asks to save and stop. Instead of a workload, a
    function that gives one may be handed over: workers start while it is called.

    >>> run(Plan())
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: a plan to run must say for which workload; make it with dt.plan(workload).
    """
    plan = what if isinstance(what, Plan) else None
    given = what.workload if isinstance(what, Plan) else what
    if given is None:
        raise DovetailError("a plan to run must say for which workload; make it with dt.plan(workload).")
    make_plan = choose("planner", planner, PLANNERS)
    addresses = check_trackers(track, models=track_models)
    if keep and plan is not None and plan.schedule:
        raise DovetailError(
            "tolerances (keep=) must go with a workload: what a plan approximates was chosen before anybody judged it. "
            "Run the workload with keep=, or plan it without approximations."
        )
    if keep:
        given = _guarded(
            given,
            keep=keep,
            planner=make_plan,
            fresh=fresh,
            cluster=cluster,
            prices=prices,
            store=store,
            engine=engine,
            address=address,
            wishes={
                "objective": objective,
                "weights": weights,
                "deadlines": deadlines,
                "techniques": techniques,
                "device_memory": device_memory,
                "allow": allow,
            },
            progress=progress,
        )
    with contextlib.ExitStack() as stack:
        described, spares = stack.enter_context(read_workload(given, engine=engine))
        search = described if isinstance(described, Search) else None
        if search is not None:
            check_optuna()
        workload = amend(
            described.workload() if isinstance(described, Search) else described,
            objective=objective,
            weights=weights,
            deadlines=deadlines,
            techniques=techniques,
            device_memory=device_memory,
            allow=allow,
        )
        home = ensure_directory(Path(store))
        with writing_to(home):
            settle_checkpoints(home, settings.checkpoints if settings else None)
        here, make = stack.enter_context(
            open_place(engine, address=address, programs=described_programs(described), home=home, spares=spares)
        )
        if plan and plan.cluster and not cluster:
            # An engine of one's own knows for itself which devices it has.
            check_planned(plan, workload, here if isinstance(engine, str) else plan.cluster)
            here = plan.cluster
        chosen = limit_cluster(price_cluster(cluster or here, prices, workload), workload)
        stack.enter_context(trackers_beside(addresses, home=home, workload=workload.name, models=track_models))
        controller = stack.enter_context(
            open_controller(
                workload if search is None else partial(take_up, search=search, workload=workload, fresh=fresh),
                cluster=chosen,
                make=make,
                home=home,
                settings=settings or Settings(),
                planner=make_plan,
                given=plan if plan and plan.schedule else None,
                source=None if search is None else make_source(search, home=home, fresh=fresh),
                observe=observe,
                progress=progress,
            )
        )
        before(controller.reconcile(fresh=fresh and search is None))
        heard = RunCallbacks(controller, home=home, on_metric=on_metric, on_evaluate=on_evaluate, on_end=on_end)
        controller.run()
    heard.check()
    result = open_result(store, workload=workload.name)
    if controller.stopping:
        stopped = KeyboardInterrupt(controller.stopping)
        stopped.result = result  # type: ignore[attr-defined]  # for who shows what it came to
        raise stopped
    if raise_on_failure:
        _check_failures(result, store)
    return result


def _guarded(
    given: Given | Search | Callable[[], Workload | Search],
    *,
    keep: Mapping[str, float],
    planner: Planner,
    fresh: bool,
    wishes: Mapping[str, Any],
    progress: bool,
    store: str | Path,
    engine: str | Engine | MakeEngine,
    address: str,
    cluster: Cluster | None,
    **where: Any,
) -> Workload:
    """The workload with its tolerances, once what it would approximate was judged by them."""
    described = refuse_search(given() if callable(given) else given)
    place: dict[str, Any] = {"engine": engine, "address": address, "cluster": cluster}
    found = measure_workload(described, store=store, before=lambda changes: None, keep=keep, **place, **where, **wishes)

    def train(pairs: Workload, folder: Path) -> Result:
        return run(pairs, store=folder, progress=progress, raise_on_failure=False, **place)

    guard(found, planner=planner, home=Path(store), train=train, fresh=fresh)
    return found.workload


def has_failed(result: Result) -> bool:
    """Whether what was asked for could not be had: some task has failed, or, of a search, all that have ended."""
    statuses = {task.status for task in result.tasks}
    return "failed" in statuses and not (result.is_search and "finished" in statuses)


def _check_failures(result: Result, store: str | Path) -> None:
    failed = [task for task in result.tasks if task.status == "failed"]
    if has_failed(result):
        redact = Redactor(task.task.parameters for task in failed)
        reasons = redact("".join(f"\n  {task.name}: {task.reason}" for task in failed))
        raise TrainingError(
            f"all tasks must end well; {len(failed)} of {len(result.tasks)} failed:{reasons}\n"
            f"dt.open_result({str(store)!r}) has what came of the others; raise_on_failure=False gives it in any case."
        )


def check_planned(plan: Plan, workload: Workload, here: Cluster) -> None:
    """Refuse a plan for other devices than those that are here."""
    assert plan.cluster is not None
    if plan.workload is not None and plan.workload.device_memory_bytes != workload.device_memory_bytes:
        raise DovetailError(
            "a plan to run is for devices of as much memory as it was made for; plan again with another device_memory."
        )
    if is_elsewhere(plan.cluster, here):
        kinds = ", ".join(kind.name for kind in plan.cluster.kinds)
        raise DovetailError(
            f"a plan to run must be for devices that are here; this one is for {kinds}. Plan again there."
        )
