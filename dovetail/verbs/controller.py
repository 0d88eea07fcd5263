"""A controller on this machine, with all that it needs around it, and how it ends."""

import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dovetail.control import Answers, CommandServer, Controller, Decider, Settings
from dovetail.control.renting import RentingMaker
from dovetail.control.task_source import SourceMaker
from dovetail.engines import LocalEngine
from dovetail.planning import PLANNERS, Problem
from dovetail.store import ControllerLock, Store, clear_scratch, make_private
from dovetail.verbs.engine_places import MakeEngine
from dovetail.vocabulary import Cluster, Plan, StoreError, Workload

Observer = Callable[[Controller], None]
# A worker that says nothing for so long is lost.
SILENCE_SECONDS = 30.0


@contextlib.contextmanager
def open_controller(
    workload: Workload | Callable[[Store], Workload],
    *,
    cluster: Cluster,
    home: Path,
    settings: Settings,
    observe: Observer | None = None,
    progress: bool = False,
    planner: Callable[[Problem], Plan] = PLANNERS["proportionate"],
    given: Plan | None = None,
    decider: Decider | None = None,
    source: SourceMaker | None = None,
    renting: RentingMaker | None = None,
    make: MakeEngine = LocalEngine,
    port: int | None = None,
    listening: Callable[[str], None] = lambda where: None,
) -> Iterator[Controller]:
    """A controller on this machine, with its store, lock, command socket and engine; all closed afterwards. It begins
    with the schedule of the plan that is `given`, if one is, and is asked for tasks by what `source` makes. With
    `progress` and nobody else to `observe` it, a live table shows where every task stands. With `port` it takes
    commands there, on loopback; `listening` is told where, once it does."""
    ensure_directory(home)
    answers: concurrent.futures.Future[Answers] = concurrent.futures.Future()
    with contextlib.ExitStack() as stack:
        table = None
        if observe is None and progress:
            from dovetail.verbs.live_table import LiveTable

            observe = table = stack.enter_context(LiveTable())
        # Before the lock: inside a worker the engine's own refusal says more than "the store is held".
        with writing_to(home):
            engine = make(cluster, home=home, silence_seconds=SILENCE_SECONDS)
        stack.callback(engine.close)  # it may have workers; once more below, so that they end before the lock does
        with writing_to(home):
            server = CommandServer(lambda request: answers.result()(request), home=home, port=port)
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
            given=given,
            decider=decider,
            source=source,
            renting=renting,
            observe=observe or (lambda controller: None),
        )
        if table is not None:
            controller.listen(table.hear)
        answers.set_result(Answers(controller))
        stack.enter_context(_interruptible(controller))
        listening(server.where)
        yield controller


def ensure_directory(home: Path) -> Path:
    """Make the store's directory where it is not there yet; gives its path. One that others own or can write is
    refused before anything in it is used."""
    with writing_to(home):
        make_private(home)
    return home


@contextlib.contextmanager
def writing_to(home: Path) -> Iterator[None]:
    """What cannot be written to the store's directory within is told as a fault of the store."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the store's directory {home} must be writable; found: {error}. Use --store.") from error


def failures(controller: Controller) -> list[str]:
    """The tasks that have failed, each with the reason."""
    return [
        f"{controller.name_of(task)}: {one.reason}"
        for task, one in controller.progress.items()
        if one.status == "failed"
    ]


def check_not_stopped(controller: Controller) -> None:
    """Raise `KeyboardInterrupt` where a stop was asked for, so that nobody takes half of it for the whole."""
    if controller.stopping:
        raise KeyboardInterrupt(controller.stopping)


def _lock(home: Path, note: dict[str, Any]) -> ControllerLock:
    with writing_to(home):
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
