"""The loop: decide → check → start → wait, until every task has ended.

The controller is the only writer of its store. What an engine reports is put on disk before anything follows
from it, and what it is asked to do is put on disk before it is asked, so that a controller killed at any moment
is replaced by the next one reading the same file. Knows engines and ways of deciding by their contracts.
"""

import contextlib
import dataclasses
import math
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.control.daemon.requests import Answer, Requests
from dovetail.control.deciding import Decider
from dovetail.control.deciding.scheduling import Scheduling
from dovetail.control.disk_room import DiskRoom
from dovetail.control.emptying import Emptying
from dovetail.control.judging import judge
from dovetail.control.measuring.measuring import Measuring
from dovetail.control.orders import Orders
from dovetail.control.reconcile import Reconciliation, bring_up_to_date
from dovetail.control.renting import RentingMaker
from dovetail.control.settings import Settings
from dovetail.control.state import Running, State
from dovetail.control.state.snapshot import Offers, unplaceable
from dovetail.control.task_source import Promotion, Prune, SourceMaker, Wish
from dovetail.control.unfit_names import UnfitNames
from dovetail.engines import Engine, Order
from dovetail.engines.provisioning.base import NUMBER
from dovetail.metrics.attendance import node_of
from dovetail.metrics.progress import Progress
from dovetail.planning import PLANNERS, Problem
from dovetail.store import Store, keep_links
from dovetail.vocabulary import (
    Cluster,
    Event,
    InvalidWorkload,
    NoFeasiblePlan,
    Option,
    Placement,
    Plan,
    StoreRefused,
    Task,
    TaskId,
    Workload,
)
from dovetail.vocabulary.events import (
    RUN_BEGAN,
    AttemptLost,
    AttemptStopped,
    CheckpointSaved,
    DevicesReleased,
    DevicesVacated,
    OptionRejected,
    RungReached,
    StepsDone,
    TaskFailed,
    TaskFingerprinted,
    TaskFinished,
    TaskPromoted,
    TrialMeasured,
    Warned,
)
from dovetail.vocabulary.node_events import DevicesJoined, DevicesLeft, NodeLeaving

# How long an order that was told to stop may take over its current step and its save.
GRACE_SECONDS = 120.0
# How often a store that takes nothing is tried again.
REFUSED_SECONDS = 0.5

Command = tuple[str, dict[str, Any]]


class Controller:
    """Carries one workload to its end on one engine, deciding by schedules of `planner`, the first of them that of the
    plan that was `given`, if one was; or as `decider` says.

    With `renting`, nodes are rented and given back as it says.

    The options that tasks have are those of what was measured, unless they are given as `offers`. The tasks of an open
    workload come from clients, or from what `source` makes; then it ends when that is done.

    `observe(controller)` is called after everything that happened, from the controller's own thread; commands
    from elsewhere come in through `post`, which any thread or signal handler may call.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        cluster: Cluster,
        store: Store,
        engine: Engine,
        settings: Settings | None = None,
        planner: Callable[[Problem], Plan] = PLANNERS["proportionate"],
        given: Plan | None = None,
        decider: Decider | None = None,
        offers: Offers | None = None,
        source: SourceMaker | None = None,
        renting: RentingMaker | None = None,
        observe: Callable[["Controller"], None] = lambda controller: None,
    ) -> None:
        self.store = store
        self.phase = "reading"
        self._engine, self._observe = engine, observe
        self._state = State(
            workload,
            cluster=cluster,
            store=store,
            settings=settings or Settings(),
            now=engine.now,
            offers=offers,
            find=engine.find,
            probe=engine.probe_urls,
            may_grow=engine.may_grow,
        )
        self._ledger, self._running, self._queues = self._state.ledger, self._state.running, self._state.queues
        self._scheduling = Scheduling(self._state, planner=planner, given=given)
        self._deciding = decider(self._state) if decider is not None else self._scheduling
        self._orders = Orders(self._state, store=store)
        self._stale = RUN_BEGAN
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping, self._stopped_at = "", 0.0
        self._measuring = Measuring(self._state, orders=self._orders)
        self._emptying = Emptying(self._state)
        self._disk_room = DiskRoom(self._state, store=store)
        self._unfit_names = UnfitNames(self._state)
        self._renting = renting(self._state) if renting is not None else None
        admit = self._renting.admit if self._renting is not None else _admit_all
        self._requests = Requests(self._state, store=store, deciding=self._deciding, admit=admit)
        self._is_answering, self._refused = False, ""
        self._ledger.on_refusal = self._endure
        self.source = source(self._state) if source is not None else None
        self._error: Exception | None = None  # what the source of tasks has raised
        self._fetched: dict[str, tuple[TaskId, int]] = {}  # by device, who comes next, and what it had saved

    @property
    def workload(self) -> Workload:
        """What is carried to its end."""
        return self._state.workload

    @property
    def cluster(self) -> Cluster:
        """Where."""
        return self._state.cluster

    @property
    def settings(self) -> Settings:
        """What the user has set."""
        return self._state.settings

    @property
    def tasks(self) -> dict[TaskId, Task]:
        """The tasks by identity."""
        return self._state.tasks

    def name_of(self, task: TaskId) -> str:
        """A task's name as it may be shown, secrets masked."""
        return self._ledger.redact.name(self.tasks[task].name)

    @property
    def plans(self) -> list[tuple[float, Plan]]:
        """The first plan and the newest ones, and when each was made; the store has them all."""
        return self._state.plans

    @property
    def progress(self) -> dict[TaskId, Progress]:
        """Where each task of this workload stands."""
        return {identity: self._ledger[identity] for identity in self.tasks}

    @property
    def left(self) -> int:
        """How many tasks have not ended."""
        return self._state.left

    @property
    def trials_left(self) -> int:
        """How many trials are still to be measured, of those that are wanted now."""
        return self._measuring.trials_left

    @property
    def stopping(self) -> str:
        """Why this controller was told to stop; empty while it was not."""
        return self._stopping

    def now(self) -> float:
        """The engine's clock."""
        return self._engine.now()

    def post(self, command: str, **arguments: Any) -> None:
        """Ask for `stop` (reason), `cancel` (task, by name), or for what a `request` says (see `Requests`), of which
        `reply` is told the answer; carried out soon."""
        self._commands.put((command, arguments))
        self._engine.interrupt()

    def listen(self, hear: Callable[[list[Event]], None]) -> None:
        """Have `hear` called, from the controller's own thread, with all events once they are on record."""
        self._ledger.listeners.append(hear)

    def reconcile(self, *, fresh: bool = False) -> Reconciliation:
        """Bring the store up to date with the workload; gives what changed since it last ran. `fresh`: every task is
        trained anew."""
        return bring_up_to_date(self._state, self.store, fresh=fresh)

    def measure(self, *, everything: bool = False) -> None:
        """Learn each task's family, then measure the options that could matter to the plan and were not measured
        yet; with `everything`, all of them. Nothing is trained."""
        self.phase = "measuring"
        self._measuring.begin(everything=everything)
        while not self._stopping and self._measure(is_idle=True):
            self._step()
        while self._running:  # what was under way when a stop was asked for
            self._step()

    def allowed(self) -> dict[str, tuple[str, ...]]:
        """By family, the approximations that its tasks may be trained with."""
        return self._state.allowed()

    def problem(self) -> Problem:
        """What is left to place, as of now. Tasks that nothing fits have failed, with the reason."""
        return self._scheduling.problem()

    def run(self) -> None:
        """Measure what has to be, decide, start and wait, until every task has ended and none can come, or a stop was
        asked for and everything is saved. Raises then what the source of tasks has raised."""
        try:
            self._carry_out()
        finally:
            if self._renting is not None:  # however it ends, nothing is to be paid for any longer
                self._ledger.record(self._renting.close())

    def _carry_out(self) -> None:
        self._measuring.begin()
        while not self._stopping and (self._state.pending() or self._state.is_open):
            self._take_commands()
            if self._stopping:
                break
            self._measure()
            if self._take_tasks():
                continue  # what came is built before anything is decided
            self.phase = "measuring" if self._measuring.holds() else "running"
            if self._measuring.holds():
                self._engine.wake(self._measuring.wake_seconds())
            elif self._state.pending() and not self._go_on():  # an open workload may have nothing to do
                continue
            self._step()
            if self._state.recovery.ripen():
                self._note("a task that was lost is tried again")
        while self._running:
            self._end_what_does_not_stop()
            self._step()
        self._take_commands()  # nobody is left without an answer
        self.phase = "stopped" if self._stopping else "done"
        self._observe(self)
        if self._error is not None:
            raise self._error

    def _take_tasks(self) -> bool:
        """Do what the source of tasks wants now; whether there is something to measure, or no reason to go on."""
        source, state, has_come = self.source, self._state, False
        if source is None or not state.is_open:
            return False
        try:
            for wish in source.wishes():
                has_come |= self._grant(wish)
            state.to_come = source.to_come
        except Exception as error:  # a sampler's or a pruner's: what runs is saved first
            self._error = error
            self._stop_all(str(error))
            return True
        if source.is_done:
            state.close()
        return has_come

    def _grant(self, wish: Wish) -> bool:
        """Do one thing that the source of tasks wants; whether something may have to be measured."""
        match wish:
            case Prune():
                found = self._requests.prune(wish.task, reason=wish.reason, metric=wish.metric, value=wish.value)
            case Promotion():
                one = self._ledger[wish.task]
                judged: dict[str, Any] = {"step": one.step, "metric": wish.metric, "value": wish.value}
                self._ledger.record([self._ledger.event(TaskPromoted, wish.task, **judged)])
                found = Answer(told={}, because="a task goes on past its rung")
            case _:
                found = self._requests.take_on(wish)
        self._follow(found)
        return found.has_come

    def _measure(self, *, is_idle: bool = False) -> bool:
        """Begin what is to be measured now; whether something is left to learn."""
        for order in self._measuring.ready(is_idle=is_idle):
            self._begin(order)
        for name, reason in self._measuring.unwanted():
            self._engine.stop(name, reason=reason)
        self._note(self._measuring.news())
        return self._measuring.is_active

    def _go_on(self) -> bool:
        """Decide, and start and stop what was decided; whether something is worth waiting for."""
        if judge(self._state):
            self._note("tasks were halved")
        self._finish_what_is_done()
        self._start(self._decide())
        for name, reason in self._deciding.unwanted():
            self._engine.stop(name, reason=reason)
        if not self._running:
            self._measure(is_idle=True)
        if not (self._running or self._stale or self._queues.empty()):
            self._stale = "nothing was left to start"
            return False
        wakes = self._deciding.wake_seconds(), self._state.recovery.wake_seconds(), self._emptying.wake_seconds()
        renting = self._renting.wake_seconds() if self._renting is not None else math.inf
        self._engine.wake(min(*wakes, renting))
        return True

    # What is to be done

    def _note(self, because: str) -> None:
        """Something changed that may make another decision better; the first such thing is the reason given."""
        self._stale = self._stale or because

    def _decide(self) -> list[Placement]:
        """What is to start now. Where no decision can be made, an open workload goes on with what it has until
        something changes: whoever submits an impossible task must not end all others."""
        state = self._state
        try:
            if self._stale and self._state.pending():
                because, self._stale = self._stale, ""
                self._disk_room.check()
                self._unfit_names.check()
                self._deciding.renew(because)
            found = self._deciding.ready()
            state.trouble = ""
            return found
        except (NoFeasiblePlan, InvalidWorkload) as error:
            if not self._stays():
                raise
            if state.trouble != str(error):
                state.trouble = str(error)
                message = f"no decision could be made: {error}"
                self._ledger.record([Warned(at_seconds=self.now(), message=message)])
            return []

    def _stays(self) -> bool:
        """Whether others may yet make possible what is not: a daemon's clients."""
        return self._state.is_open and self.source is None

    def _finish_what_is_done(self) -> None:
        """A task told to stop earlier than it has come is finished. One that is just there has its end to report."""
        if not self._stale:
            return
        for task, one in self._state.known():
            if one.status == "pending" and one.saved_step:
                until, final = self._state.target(task)
                if final and one.saved_step > until:
                    reason = f"it was at step {one.saved_step} when it was told to stop after {until}"
                    self._ledger.record([self._ledger.event(TaskFinished, task, step=one.saved_step, reason=reason)])

    def _start(self, placements: list[Placement]) -> None:
        for placement in [each for each in placements if any(map(self._ledger.rests, each.tasks))]:
            placements.remove(placement)  # decided before a user asked for something else
            self._queues.release(placement.devices, placement.option)
            self._queues.come_back(placement.tasks)
            self._note("a task is not to start after all")
        orders = [self._orders.train(placement) for placement in placements]
        pairs = list(zip(placements, orders, strict=True))
        self._ledger.record(event for placement, order in pairs for event in self._orders.started(order, placement))
        for placement, order in pairs:
            self._begin(order, option=placement.option, placement=placement)
        self._fetch_next()

    def _fetch_next(self) -> None:
        """Have what is saved of those who visit next fetched to where they go, once for each save."""
        for device, task in self._queues.upcoming():
            saved = task, self._ledger[task].saved_step
            if saved[1] and self._fetched.get(device) != saved:
                self._fetched[device] = saved
                self._engine.fetch((device,), self._orders.directory(task))

    def _begin(self, order: Order, *, option: Option | None = None, placement: Placement | None = None) -> None:
        self._running[order.name] = Running(
            order=order, option=option, placement=placement, started_at=self._engine.now()
        )
        self._engine.start(order)

    # What happened

    def _step(self) -> None:
        self._take_commands()
        if self._renting is not None:
            self._handle(self._renting.step())
        self._empty_nodes()
        self._handle(self._engine.wait())
        self._observe(self)

    def _handle(self, events: list[Event]) -> None:
        accepted = [each for event in events for each in self._accept(event)]
        self._ledger.record(accepted)
        for event in accepted:
            match event:
                case CheckpointSaved() | StepsDone():
                    pass  # most are of these kinds
                case AttemptLost():
                    self._after_loss(event)
                case AttemptStopped() | RungReached() if self._ledger[event.task].cancelling:
                    self._ledger.record([self._ledger.ending(event.task, step=event.step)])
                case RungReached() | TaskFailed() | TaskFinished():
                    self._after_end(event)
                case TaskFingerprinted():
                    self._note("a task has arrived")
                case DevicesVacated():
                    running = self._running[event.placement]
                    running.vacated_at = event.at_seconds
                    self._queues.release(running.order.devices, running.option)
                case DevicesReleased():
                    self._after_release(event)
                case OptionRejected() if event.attempt:
                    self._measuring.is_stale = True  # what takes its option's place may have to be measured
                case TrialMeasured() if not self._measuring.holds():
                    self._note("a task can be placed")
                case DevicesLeft():
                    self._after_departure(event)
                case NodeLeaving():
                    self._emptying.begin(event)
                    self._note(f"node {event.node} leaves")
                case DevicesJoined():
                    self._after_arrival(event)

    def _accept(self, event: Event) -> list[Event]:
        """What an event is put on record as: nothing for what a stale attempt says."""
        if isinstance(event, DevicesReleased):
            running = self._running[event.placement]
            at_seconds = event.at_seconds if running.vacated_at is None else running.vacated_at
            return [
                dataclasses.replace(
                    event,
                    at_seconds=at_seconds,
                    duration_seconds=at_seconds - running.started_at,
                    purpose=running.order.purpose,
                    devices=running.order.devices,
                )
            ]
        if event.attempt and event.attempt != self._ledger[event.task].attempt:
            return []
        # What measuring says of a task that was cancelled meanwhile, or whose worker this loop itself ended.
        measured = not event.attempt and isinstance(event, TaskFailed | AttemptLost | OptionRejected)
        if measured and (self._stopping or self._ledger.has_ended(event.task)):
            return []
        if not isinstance(event, TaskFailed | AttemptLost):
            return [event]  # most are of this kind, and whose order it was takes a look at all that runs
        return self._state.recovery.accept(event, self._order_of(event))

    def _order_of(self, event: Event) -> Order | None:
        """The order that an event of a task came of."""
        orders = (running.order for running in self._running.values() if event.task in running.tasks)
        return next((order for order in orders if (order.purpose == "train") == bool(event.attempt)), None)

    def _after_loss(self, event: AttemptLost) -> None:
        one = self._ledger[event.task]
        self._note("a worker was lost")
        if not event.attempt:
            self._measuring.lost()
        if one.cancelling:
            self._ledger.record([self._ledger.ending(event.task, step=one.saved_step)])
            return
        self._ledger.record(self._state.recovery.after_loss(event, self._order_of(event)))

    def _after_departure(self, event: DevicesLeft) -> None:
        for node in dict.fromkeys(map(node_of, event.devices)):
            self._emptying.end(node)
            if self._renting is not None:
                self._ledger.record(self._renting.departed(node))
        self._state.leave(event.devices, for_good=event.back_seconds is None)
        # What is left may have to be used in other ways, for those to whom none is known.
        self._measuring.is_stale |= self._state.measures and bool(unplaceable(self._state.problem()))
        self._note("devices left the cluster")

    def _after_arrival(self, event: DevicesJoined) -> None:
        before = self._state.cluster
        self._state.join(event.devices, cluster=event.cluster)
        if self._state.cluster.devices != before.devices:
            keep_links(self.store, self._state.cluster, label=NUMBER)
            # Of a kind of which nothing is known. More of one that is known are not worth stopping what runs.
            self._measuring.is_stale |= bool(_kinds(self._state.cluster) - _kinds(before)) or self._state.is_held()
            self._note("devices joined the cluster")

    def _empty_nodes(self) -> None:
        """Stop what is on nodes that leave, and let go of those on which nothing is any more."""
        for name, reason, save in list(self._emptying.unwanted()):
            self._engine.stop(name, reason=reason, save=save)
        for node in self._emptying.emptied():
            self._engine.dismiss(self._state.devices_of(node))
            if self._renting is not None:
                self._ledger.record(self._renting.emptied(node))

    def _after_end(self, event: RungReached | TaskFailed | TaskFinished) -> None:
        self._note(self._deciding.ended(event.task))
        if isinstance(event, TaskFailed) or event.reason:
            self._note(f"a task {event.kind} early")

    def _after_release(self, event: DevicesReleased) -> None:
        running = self._running.pop(event.placement)
        if running.vacated_at is None:
            self._queues.release(running.order.devices, running.option)
        self._queues.come_back(running.tasks)
        if running.placement is not None:
            self._note(self._deciding.freed(running, taken_seconds=event.duration_seconds))
        elif not self._measuring.holds():
            self._note("a device that measured is free")

    # Commands

    def _take_commands(self) -> None:
        if self._refused:
            message, self._refused = f"the store takes writes again, after: {self._refused}", ""
            self._ledger.record([Warned(at_seconds=self.now(), message=message)])
        while not self._commands.empty():
            command, arguments = self._commands.get()
            if command == "stop":
                self._stop_all(arguments.get("reason", "a stop was asked for"))
            elif command == "cancel":
                self._answer({"do": "cancel", **arguments})
            elif command == "request":
                arguments["reply"](self._answer(arguments["request"]))

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a request, with what follows from it; what its client is told."""
        self._is_answering = True  # what cannot be put on record is refused at once
        answer = self._requests.answer(request)
        self._is_answering = False
        self._follow(answer)
        return answer.told

    def _follow(self, answer: Answer) -> None:
        """What an answer leads to."""
        self._note(answer.because)
        self._measuring.is_stale |= answer.has_come
        for name, running in list(self._running.items()):
            if answer.stop in running.tasks:
                if running.placement:
                    self._engine.stop(name, reason=answer.reason)
                elif all(map(self._ledger.rests, running.tasks)):  # nobody wants to know what it measures
                    self._engine.stop(name, reason=answer.reason, save=False)

    def _endure(self, error: StoreRefused) -> None:
        """Where a store takes nothing (its disk is full), a controller that stays waits where it is until it does:
        workers go on with what they have, clients are told why nothing is taken on. Returns when it is time to try
        again, or raises where nobody is to wait."""
        if self._is_answering or self._stopping or not self._stays():
            raise error
        if not self._refused:
            self._refused = self._state.trouble = str(error)
            for hear in self._ledger.listeners:  # on no record, for there is no room for one
                hear([Warned(at_seconds=self.now(), message=str(error))])
        self.phase, due, later = "waiting for the store", time.monotonic() + REFUSED_SECONDS, []
        with contextlib.suppress(queue.Empty):
            while (left := due - time.monotonic()) > 0:
                command, arguments = self._commands.get(timeout=left)
                if command == "stop":
                    raise error
                if command == "request":
                    arguments["reply"](self._refuse(arguments["request"], error))
                else:
                    later.append((command, arguments))
        for each in later:
            self._commands.put(each)

    def _refuse(self, request: Mapping[str, Any], error: StoreRefused) -> Mapping[str, Any]:
        """What is told while nothing can be put on record: where tasks stand can be said all the same."""
        return self._requests.answer(request).told if request.get("do") == "list" else {"error": str(error)}

    def _end_what_does_not_stop(self) -> None:
        """A worker that hangs still beats, but never looks at the word to stop."""
        if self._stopping and self.now() - self._stopped_at > GRACE_SECONDS:
            for name in list(self._running):
                self._engine.stop(name, reason=f"it did not stop within {GRACE_SECONDS:.0f} s", save=False)

    def _stop_all(self, reason: str) -> None:
        if not self._stopping:  # asking again gives nobody more time
            self._stopping, self._stopped_at = reason, self.now()
        for name, running in list(self._running.items()):
            self._engine.stop(name, reason=reason, save=running.order.purpose == "train")


def _admit_all(tasks: Iterable[Task]) -> None:
    """Refuse none: nothing is rented by a deadline."""


def _kinds(cluster: Cluster) -> set[str]:
    """The kinds of which there are devices."""
    return {device.kind for device in cluster.devices}
