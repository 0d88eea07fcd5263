"""`dt.plan` and `dt.run`: the same two verbs for Python and for the command line."""

import concurrent.futures
import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dovetail.control import (
    CommandServer,
    Controller,
    Decider,
    Reconciliation,
    Result,
    Settings,
    answer,
    open_result,
)
from dovetail.engines import LocalEngine, detect
from dovetail.planning import PLANNERS, Problem
from dovetail.planning.options.kinds import parse_cluster
from dovetail.store import ControllerLock, Store, clear_scratch, settle_checkpoints
from dovetail.verbs.places import Make, place, read
from dovetail.verbs.planning import Remembering, Wish, imagined, is_elsewhere, solved
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    Kind,
    Link,
    NoFeasiblePlan,
    Objective,
    Plan,
    Profile,
    StoreError,
    Workload,
)

Observer = Callable[[Controller], None]
Given = Workload | Callable[[], Workload]
"""A workload, or what reads one; workers start meanwhile."""


@contextlib.contextmanager
def controlling(
    workload: Workload | Callable[[Store], Workload],
    *,
    cluster: Cluster,
    home: Path,
    settings: Settings,
    observe: Observer = lambda controller: None,
    silence_seconds: float = 30.0,
    planner: Callable[[Problem], Plan] = PLANNERS["effort"],
    decider: Decider | None = None,
    make: Make = LocalEngine,
    port: int | None = None,
    listening: Callable[[str], None] = lambda where: None,
) -> Iterator[Controller]:
    """A controller on this machine, with its store, lock, command socket and engine; all closed afterwards. With `port`
    it takes commands there, on loopback; `listening` is told where, once it does."""
    _made(home)
    current: concurrent.futures.Future[Controller] = concurrent.futures.Future()
    with contextlib.ExitStack() as stack:
        # Before the lock: inside a worker the engine's own refusal says more than "the store is held".
        with _writing(home):
            engine = make(cluster, home=home, silence_seconds=silence_seconds)
        stack.callback(engine.close)  # it may have workers; once more below, so that they end before the lock does
        with _writing(home):
            server = CommandServer(lambda request: answer(current.result(), request), home=home, port=port)
        stack.callback(server.close)
        stack.enter_context(_lock(home, server.note))
        clear_scratch(home, keep=server.folder)
        stack.callback(clear_scratch, home, keep=server.folder, ends=True)  # workers that were killed leave some too
        store = stack.enter_context(Store(home, write=True))
        stack.callback(engine.close)
        controller = Controller(
            workload(store) if callable(workload) else workload,
            cluster=cluster,
            store=store,
            engine=engine,
            settings=settings,
            planner=planner,
            decider=decider,
            observe=observe,
        )
        current.set_result(controller)
        stack.enter_context(_interruptible(controller))
        listening(server.where)
        yield controller


def plan(
    workload: Given,
    *,
    cluster: Cluster | str | None = None,
    objective: str | None = None,
    explain: bool = False,
    solve_seconds: float = 5.0,
    prices: Mapping[str, float] = MappingProxyType({}),
    weights: Mapping[str, float] = MappingProxyType({}),
    deadlines: Mapping[str, float] = MappingProxyType({}),
    store: str | Path = ".dovetail",
    engine: str = "local",
    address: str = "auto",
    before: Callable[[Reconciliation], None] = lambda found: None,
) -> Plan:
    """Measure what has not been measured yet, and plan. Nothing is trained beyond the trials.

    `cluster` is what is detected unless told otherwise, or one that is imagined, such as `"8xa100+4xv100"`: kinds that
    are not here are predicted from what was measured here, and options on them are marked so. `objective` is the
    workload's own unless told otherwise; `explain` adds what one more device of each kind would buy. `deadlines` are
    seconds from now by task name, besides the workload's own; they are kept, or refused. `engine` and `address` say
    where it is measured, as in `dt.run`.

    `print(plan)` shows a table and why; `dt.run(plan)` runs it. What was measured stays in `store`: give `dt.run`
    the same one. A store that cannot be written is refused before anything starts:

    >>> from dovetail.describe import grid
    >>> workload = grid("dovetail.testing.programs:dropout", seed=[0, 1], steps=9)
    >>> plan(workload, store="/dev/null/store")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dovetail.vocabulary.errors.StoreError: the store's directory /dev/null/store must be writable; found: ...
    """
    with contextlib.ExitStack() as stack:
        workload, spares = stack.enter_context(read(workload, engine=engine))
        workload = _due(_named(workload), deadlines)
        names = {task.identity: task.name for task in workload.tasks}
        wish = Wish(
            objective=str(Objective.parse(objective or workload.objective)),
            explain=explain,
            solve_seconds=solve_seconds,
            prices=prices,
            weights=weights,
            deadlines=workload.deadlines,
        )
        # Deadlines count from when the plan starts, not from before the measuring.
        undated = dataclasses.replace(workload, deadlines={})
        planner, home = Remembering(), _made(Path(store))
        here, make = stack.enter_context(place(engine, address=address, workload=workload, home=home, spares=spares))
        here = cluster if isinstance(cluster, Cluster) else here
        imagine = parse_cluster(cluster, at_hand=here.kinds) if isinstance(cluster, str) else here
        asked = wish.check_cluster(imagine, names)
        if isinstance(cluster, str) and is_elsewhere(asked, here):
            if spares is not None:  # what they import would disturb the measuring
                spares.close()
            here = _rated(here, store=store)
        controller = stack.enter_context(
            controlling(undated, cluster=here, make=make, home=home, settings=Settings(), planner=planner)
        )
        before(controller.reconcile())
        controller.measure()
        _check_not_stopped(controller)
        controller.plan()
        assert planner.problem is not None
        profiles = controller.store.profiles()
        failures = _failures(controller)
        if len(failures) == len(controller.tasks):
            raise DovetailError("no task could be planned:\n" + "\n".join(failures))
    if isinstance(cluster, str):
        problem = imagined(planner.problem, asked, profiles=profiles, at_hand=here.kinds)
    else:
        problem = dataclasses.replace(planner.problem, cluster=asked)
    try:
        found = solved(problem, wish=wish, names=names)
    except NoFeasiblePlan as error:
        raise NoFeasiblePlan(_with_names(str(error), names)) from None
    lines = [*found.explanation, *(f"not planned: {failure}" for failure in failures)]
    explanation = tuple(_with_names(line, names) for line in lines)
    return dataclasses.replace(found, explanation=explanation, workload=workload, cluster=asked)


def profile(
    workload: Given, *, store: str | Path = ".dovetail", engine: str = "local", address: str = "auto"
) -> tuple[list[tuple[str, Profile]], list[str]]:
    """Measure what has not been measured yet; gives each profile with the names of the tasks it stands for, and
    what could not be measured with the reason."""
    with contextlib.ExitStack() as stack:
        workload, spares = stack.enter_context(read(workload, engine=engine))
        workload, home = _named(workload), _made(Path(store))
        here, make = stack.enter_context(place(engine, address=address, workload=workload, home=home, spares=spares))
        controller = stack.enter_context(controlling(workload, cluster=here, make=make, home=home, settings=Settings()))
        controller.reconcile()
        controller.measure(everything=True)
        _check_not_stopped(controller)
        names: dict[str, list[str]] = {}
        for identity, one in controller.progress.items():
            if one.fingerprint:
                names.setdefault(one.fingerprint.family, []).append(controller.tasks[identity].name)
        failures = _failures(controller)
        if failures and not names:
            raise DovetailError("no task could be measured:\n" + "\n".join(failures))
        found = [(", ".join(names[p.family]), p) for p in controller.store.profiles() if p.family in names]
        return found, failures


def cluster(*, measure: bool = False, store: str | Path = ".dovetail") -> Cluster:
    """This machine, with what was measured of its devices and links, now or earlier."""
    found, home = detect(), Path(store)
    if measure:
        found = _measured(found)
        with ControllerLock(_made(home)), Store(home, write=True) as opened:
            opened.add(hardware=[(kind.name, found) for kind in found.kinds])
    elif (home / "store.sqlite").exists():
        with Store(home) as opened:
            known = opened.hardware(found.kinds[0].name, Cluster)
            found = _known(found, known) if known else found
    return found


def run(
    what: Plan | Given,
    *,
    cluster: Cluster | None = None,
    store: str | Path = ".dovetail",
    settings: Settings | None = None,
    engine: str = "local",
    address: str = "auto",
    deadlines: Mapping[str, float] = MappingProxyType({}),
    progress: bool = True,
    before: Callable[[Reconciliation], None] = lambda found: None,
    observe: Observer | None = None,
) -> Result:
    """Run a plan, or measure, plan and run a workload. Stop it and run it again to go on.

    `before` is told what changed since the store last saw this workload. With `progress`, a live table shows
    where every task stands. A second Ctrl-C ends at once what the first asks to save and stop. `engine` is `local`, or
    `ray` for the Ray cluster at `address`: `host:port`, `auto` for the one that this machine belongs to, `local` for
    one that is started for this run. `deadlines` are seconds from now by task name, besides those of the workload or
    the plan: a run that cannot keep them is refused, and one that comes to be late goes on as little late as it can.
    Instead of a workload, a function that gives one may be handed over: workers start while it is called.

    >>> run(Plan())
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: a plan to run must say for which workload; make it with dt.plan(workload).
    """
    given = what.workload if isinstance(what, Plan) else what
    if given is None:
        raise DovetailError("a plan to run must say for which workload; make it with dt.plan(workload).")
    with contextlib.ExitStack() as stack:
        workload, spares = stack.enter_context(read(given, engine=engine))
        workload, home = _due(_named(workload), deadlines), _made(Path(store))
        with _writing(home):
            settle_checkpoints(home, settings.checkpoints if settings else None)
        here, make = stack.enter_context(place(engine, address=address, workload=workload, home=home, spares=spares))
        cluster = cluster or (what.cluster if isinstance(what, Plan) else None) or here
        if isinstance(what, Plan) and is_elsewhere(cluster, here):
            kinds = ", ".join(kind.name for kind in cluster.kinds)
            raise DovetailError(
                f"a plan to run must be for devices that are here; this one is for {kinds}. Plan again there."
            )
        if observe is None and progress:
            from dovetail.verbs.live import Live

            observe = stack.enter_context(Live())
        controller = stack.enter_context(
            controlling(
                workload,
                cluster=cluster,
                make=make,
                home=home,
                settings=settings or Settings(),
                observe=observe or (lambda controller: None),
            )
        )
        before(controller.reconcile())
        controller.measure()
        controller.run()
    return open_result(store, workload=workload.name)


def _rated(here: Cluster, *, store: str | Path) -> Cluster:
    """This machine with the rates of its kinds, which predictions for other kinds start from."""
    known = cluster(store=store)
    return known if all(k.matrix_flops_per_second for k in known.kinds) else cluster(measure=True, store=store)


def _check_not_stopped(controller: Controller) -> None:
    if controller.stopping:
        raise KeyboardInterrupt(controller.stopping)


def _with_names(line: str, names: dict[str, str]) -> str:
    for identity, name in names.items():
        line = line.replace(identity, name)
    return line


def _named(workload: Workload) -> Workload:
    return workload if workload.name else dataclasses.replace(workload, name=workload.tasks[0].program.function)


def _due(workload: Workload, deadlines: Mapping[str, float]) -> Workload:
    return dataclasses.replace(workload, deadlines={**workload.deadlines, **deadlines}) if deadlines else workload


def _failures(controller: Controller) -> list[str]:
    return [
        f"{controller.tasks[task].name}: {one.reason}"
        for task, one in controller.progress.items()
        if one.status == "failed"
    ]


def _made(home: Path) -> Path:
    with _writing(home):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home


@contextlib.contextmanager
def _writing(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the store's directory {home} must be writable; found: {error}. Use --store.") from error


def _known(found: Cluster, known: Cluster) -> Cluster:
    """This machine with the rates that were measured of it earlier."""
    rate = known.nodes[0].update_parameters_per_second
    nodes = tuple(dataclasses.replace(node, update_parameters_per_second=rate) for node in found.nodes)
    return dataclasses.replace(found, kinds=known.kinds, links=known.links, nodes=nodes)


def _measured(found: Cluster) -> Cluster:
    import torch

    from dovetail.profile.devices import measure_kind
    from dovetail.profile.links import measure_links
    from dovetail.profile.update_rate import measure_updates

    kinds: list[Kind] = []
    links: list[Link] = []
    for kind in found.kinds:
        device = torch.device(kind.processor)
        kinds.append(measure_kind(kind, device=device))
        links += measure_links(kind, device=device)
    (node,) = found.nodes
    node = dataclasses.replace(node, update_parameters_per_second=measure_updates(threads=node.cores))
    return dataclasses.replace(found, kinds=tuple(kinds), links=tuple(links), nodes=(node,))


def _lock(home: Path, note: dict[str, Any]) -> ControllerLock:
    with _writing(home):
        return ControllerLock(home, note=note)


@contextlib.contextmanager
def _interruptible(controller: Controller) -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or closed terminal asks to save and stop; the second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        controller.post("stop", reason=f"interrupted by {signal.Signals(number).name}")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
