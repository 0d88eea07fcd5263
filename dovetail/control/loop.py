"""The loop: snapshot → plan → check → start → wait, until every task has ended.

The controller is the only writer of its store. What an engine reports is put on disk before anything follows
from it, and what it is asked to do is put on disk before it is asked, so that a controller killed at any moment
is replaced by the next one reading the same file. Knows engines by their contract and planners as functions.
"""

import dataclasses
import itertools
import math
import queue
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dovetail.control import halving, measuring
from dovetail.control.ledger import RUN_BEGAN, Ledger
from dovetail.control.queues import Queues
from dovetail.control.reconcile import Reconciliation, events_of, reconcile
from dovetail.control.settings import Settings
from dovetail.control.snapshot import Waiting, snapshot, unplaceable, without
from dovetail.describe import deposit
from dovetail.engines import Engine, MemberOrder, Order
from dovetail.metrics.progress import Progress
from dovetail.plan import PLANNERS, Problem, Trial, best_move, check, worthwhile
from dovetail.store import Store, raise_fence
from dovetail.vocabulary import (
    ROUNDED,
    Cluster,
    Event,
    NoFeasiblePlan,
    Objective,
    Option,
    Placement,
    Plan,
    StoreError,
    Task,
    Workload,
    to_json,
)
from dovetail.vocabulary.units import show_seconds

# A placement that took this much more or less than predicted makes the plan worth making again.
DRIFT = 0.10
DRIFT_SECONDS = 1.0
# How long an order that was told to stop may take over its current step and its save.
GRACE_SECONDS = 120.0

Command = tuple[str, dict[str, Any]]


@dataclasses.dataclass(kw_only=True)
class _Running:
    order: Order
    option: Option | None
    placement: Placement | None
    started_at: float


class Controller:
    """Carries one workload to its end on one engine.

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
        planner: Callable[[Problem], Plan] = PLANNERS["effort"],
        observe: Callable[["Controller"], None] = lambda controller: None,
    ) -> None:
        self.workload, self.cluster, self.store = workload, cluster, store
        self.settings = settings or Settings()
        self.tasks: dict[str, Task] = {task.identity: task for task in workload.tasks}
        self.phase = "reading"
        self.plans: list[tuple[float, Plan]] = []
        self.trials_left = 0
        self._engine, self._planner, self._observe = engine, planner, observe
        self._ledger = Ledger(store, now=engine.now)
        self._running: dict[str, _Running] = {}
        self._queues = Queues(cluster)
        self._numbers = itertools.count(1)
        self._stale = RUN_BEGAN
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping, self._stopped_at, self._began = "", 0.0, engine.now()
        self._cancelled: set[str] = set()
        self._moving: set[str] = set()
        self._idles, self._asked_until = False, 0.0

    @property
    def progress(self) -> dict[str, Progress]:
        """Where each task of this workload stands."""
        return {identity: self._ledger[identity] for identity in self.tasks}

    @property
    def stopping(self) -> str:
        """Why this controller was told to stop; empty while it was not."""
        return self._stopping

    def now(self) -> float:
        """The engine's clock."""
        return self._engine.now()

    def post(self, command: str, **arguments: Any) -> None:
        """Ask for `stop` (reason) or `cancel` (task, by name); carried out soon."""
        self._commands.put((command, arguments))

    def reconcile(self) -> Reconciliation:
        """Bring the store up to date with the workload; gives what changed since it last ran."""
        found = reconcile(self.workload, self.store, gone=self._ledger.gone())
        events = events_of(found, at_seconds=self.now())
        for task, one in self.progress.items():
            if one.status == "failed" or (one.status == "halved" and self.workload.halving is None):
                events.append(self._ledger.event("retried", task))
            elif one.status == "running":  # its controller was killed
                events.append(self._ledger.event("lost", task, reason="its controller ended"))
        if self.store.home is not None:
            try:
                deposit(self.store.home)
            except OSError as error:
                raise StoreError(f"the store at {self.store.home} must be writable; found: {error}.") from error
        self.store.add(hardware=[("cluster", self.cluster)])
        self._ledger.record(events, tasks=[(self.workload.name, task) for task in self.tasks.values()])
        for one in self.progress.values():
            one.losses = 0  # the retry budget is a run's own
        return found

    def measure(self, *, everything: bool = False) -> None:
        """Learn each task's family, then measure the options that could matter to the plan and were not measured
        yet; with `everything`, all of them."""
        self.phase = "measuring"
        while not self._stopping and (unknown := measuring.fingerprints(self.tasks, self._ledger, self.cluster)):
            self._run_all(unknown)
        self._fail(measuring.impossible(self.workload, self._ledger))
        while not self._stopping and (wanted := self._wanted_trials(everything)):
            self.trials_left = len(wanted)
            self._run_all(measuring.trial_orders(wanted, self.tasks, self._ledger, self.cluster))
        self.trials_left = 0
        self._fail(measuring.impossible(self.workload, self._ledger))

    def plan(self) -> Plan:
        """The plan for what is left, as of now. Tasks that nothing fits have failed, with the reason."""
        problem = self._problem()
        if nowhere := unplaceable(problem):
            self._fail(nowhere)
            problem = without(problem, nowhere)
        try:
            plan = self._planner(problem)
        except NoFeasiblePlan as error:
            if Objective.parse(problem.objective).name != "spend":
                raise
            # The deadline cannot be kept any more: what is left is to be late by as little as can be.
            plan = self._planner(dataclasses.replace(problem, objective="makespan"))
            self._ledger.record([Event(kind="warned", at_seconds=self.now(), data={"message": str(error)})])
        assert plan.schedule is not None
        check(plan.schedule, self.cluster, running=problem.running)
        return plan

    def run(self) -> None:
        """Until every task has ended, or a stop was asked for and everything is saved."""
        self.phase = "running"
        while not self._stopping and self._pending():
            self._take_commands()
            if self._stopping:
                break
            self._judge()
            self._finish_what_is_done()
            if self._stale and self._pending():
                self._replan()
            self._start_ready()
            self._move()
            if not self._running and not self._stale:
                assert not self._queues.empty() or not self._pending(), "tasks are pending and nothing can start"
                self._stale = "nothing was left to start"
                continue
            self._step()
        while self._running:
            self._end_what_does_not_stop()
            self._step()
        self.phase = "stopped" if self._stopping else "done"
        self._observe(self)

    # What is to be done

    def _pending(self) -> bool:
        return not all(self._ledger.has_ended(task) for task in self.tasks)

    def _problem(self, *, moving: bool = False) -> Problem:
        """What is to be placed now; with `moving`, what runs could be placed anew as well."""
        now = self.now()
        placed = [each for each in self._running.values() if each.placement]
        # Of a gang that was stopped some may be back before the others; their devices are not free until all are.
        busy = set().union(*map(_tasks, placed))
        waiting = [
            self._waiting(task, self._steps(task))
            for task in self.tasks
            if task not in busy and (one := self._ledger[task]).status == "pending" and one.fingerprint
        ]
        if moving:
            waiting += [self._waiting(task, left) for each in placed for task, left in self._left(each, now).items()]
        return snapshot(
            waiting,
            profiles=[each for each in self._ledger.profiles() if self._may(each.technique)],
            cluster=self.cluster,
            running=tuple(self._remaining(each, now) for each in placed),
            rejected=self._ledger.rejections().values(),
            objective=self._objective(),
        )

    def _objective(self) -> str:
        """The workload's objective, as of now."""
        wanted = Objective.parse(self.workload.objective)
        if wanted.name == "first":
            have = sum(one.status == "finished" for one in self.progress.values())
            # With the results that were asked for, what is left is only to be over soon.
            left = wanted.results - have
            return str(dataclasses.replace(wanted, results=left)) if left > 0 else "makespan"
        if wanted.name == "spend":
            left_seconds = wanted.deadline_seconds - (self.now() - self._began)
            return str(dataclasses.replace(wanted, deadline_seconds=left_seconds)) if left_seconds > 0 else "makespan"
        return str(wanted)

    def _may(self, technique: str) -> bool:
        return not (self.settings.exact and technique in ROUNDED)

    def _waiting(self, task: str, steps: int) -> Waiting:
        one = self._ledger[task]
        assert one.fingerprint is not None
        return Waiting(task=task, family=one.fingerprint["family"], steps=steps, count=self._kept(one))

    def _kept(self, one: Progress) -> int:
        """The device count that a task must keep: its rounding on a CPU depends on it. 0: any."""
        if not one.spans or not (one.saved_step or one.status == "running"):
            return 0
        kinds = {device.name: device.kind for device in self.cluster.devices}
        kind = kinds.get(one.spans[-1].devices[0])
        return 0 if kind and self.cluster.kind(kind).processor != "cpu" else one.count

    def _remaining(self, running: _Running, now: float) -> Placement:
        """A running placement as planners see it: started before zero, ending as its progress says, or as predicted
        where it has reported none, or soon if it is late."""
        assert running.placement is not None
        start, length = running.started_at - now, running.placement.duration_seconds
        seen = [
            (member.until_step - one.step) / one.steps_per_second
            for member in running.order.members
            if (one := self._ledger[member.task.identity]).status == "running" and one.steps_per_second
        ]
        # Late by an unknown amount: a tenth of its length more is as good a guess as any.
        end = max(seen) if seen else start + length if start + length > 0 else 0.1 * length
        return dataclasses.replace(running.placement, start_seconds=start, duration_seconds=end - start)

    def _left(self, running: _Running, now: float) -> dict[str, int]:
        """How many steps each task of a running placement has yet to take."""
        placement = self._remaining(running, now)
        share = placement.end_seconds / placement.duration_seconds
        return {
            task: max(1, min(steps, math.ceil(steps * share)))
            for task, steps in zip(placement.tasks, placement.steps, strict=True)
            if self._ledger[task].status == "running"
        }

    def _target(self, task: str) -> tuple[int, bool]:
        one = self._ledger[task]
        assert one.fingerprint is not None
        last = self.tasks[task].stop.last_step(one.fingerprint.get("steps_per_epoch"))
        return halving.target(
            self.workload.halving, promoted_step=one.promoted_step, saved_step=one.saved_step, last_step=last
        )

    def _steps(self, task: str) -> int:
        until, _ = self._target(task)
        # A task already there has its end to report; that is a step's worth of work at most.
        return max(1, until - self._ledger[task].saved_step)

    def _finish_what_is_done(self) -> None:
        """A task told to stop earlier than it has come is finished. One that is just there has its end to report."""
        if not self._stale:
            return
        for task, one in self.progress.items():
            if one.status == "pending" and one.fingerprint:
                until, final = self._target(task)
                if final and one.saved_step > until:
                    reason = f"it was at step {one.saved_step} when it was told to stop after {until}"
                    self._ledger.record([self._ledger.event("finished", task, step=one.saved_step, reason=reason)])

    def _replan(self) -> None:
        because, self._stale = self._stale, ""
        plan = self.plan()
        assert plan.schedule is not None
        self.plans.append((self.now(), plan))
        self._ledger.record_plan(plan, workload=self.workload.name, because=because)
        self._queues.load(plan.schedule)
        self._idles = True

    def _move(self) -> None:
        """Where devices idle, stop what should run there instead; the plan that follows places it."""
        idles, self._idles = self._idles and self._queues.idles(), False
        if not idles or self._moving or not self._running or self.now() < self._asked_until:
            return
        problem = self._problem(moving=True)
        longest = max((placement.end_seconds for placement in problem.running), default=0.0)
        self._asked_until = self.now() + DRIFT * longest  # asking takes time too
        move = best_move(problem, planner=PLANNERS["at once"])
        if move is None:
            return
        (name,) = (n for n, each in self._running.items() if set(move.placement.tasks) & _tasks(each))
        self._moving = _tasks(self._running[name])
        reason = (
            f"placing it anew ends everything in {show_seconds(move.after_seconds)} instead of "
            f"{show_seconds(move.before_seconds)}, moving counted in"
        )
        self._engine.stop(name, reason=reason)

    def _start_ready(self) -> None:
        started = self._queues.ready()
        orders = [self._order(placement) for placement in started]
        self._ledger.record(
            self._ledger.event(
                "started",
                member.task.identity,
                attempt=member.attempt,
                placement=order.name,
                devices=order.devices,
                step=self._ledger[member.task.identity].saved_step,
                until=member.until_step,
                predicted_seconds=placement.duration_seconds,
                option=to_json(placement.option),
            )
            for placement, order in zip(started, orders, strict=True)
            for member in order.members
        )
        for placement, order in zip(started, orders, strict=True):
            self._begin(order, option=placement.option, placement=placement)

    def _order(self, placement: Placement) -> Order:
        members = []
        for task in placement.tasks:
            until, final = self._target(task)
            attempt = self._ledger[task].attempt + 1
            members.append(
                MemberOrder(
                    task=self.tasks[task],
                    attempt=attempt,
                    until_step=until,
                    final=final,
                    directory=self._directory(task, attempt),
                )
            )
        return self._new_order(
            purpose="train",
            members=tuple(members),
            devices=placement.devices,
            technique=placement.option.technique,
            knobs=placement.option.knobs,
            save_every_seconds=self.settings.save_every_seconds,
            save_every_steps=self.settings.save_every_steps,
            keep_count=self.settings.keep_count,
            keep_bytes=self.settings.keep_bytes,
            predicted_seconds=placement.duration_seconds,
        )

    def _directory(self, task: str, attempt: int) -> str:
        if self.store.home is None:
            return ""
        directory = Path(self.store.home).resolve() / "checkpoints" / task
        try:
            raise_fence(directory, attempt)
        except OSError as error:
            # The worker meets the same trouble when it saves, and fails this one task with it.
            self._ledger.record([self._ledger.event("warned", task, message=f"{directory} must be writable: {error}")])
        return str(directory)

    def _new_order(self, **fields: Any) -> Order:
        return Order(name=f"{self.now():.3f}-{next(self._numbers)}", **fields)

    def _begin(self, order: Order, *, option: Option | None = None, placement: Placement | None = None) -> None:
        self._running[order.name] = _Running(
            order=order, option=option, placement=placement, started_at=self._engine.now()
        )
        self._engine.start(order)

    # Measuring

    def _wanted_trials(self, everything: bool) -> tuple[Trial, ...]:
        wanted = measuring.missing_trials(self.tasks, self._ledger, self.cluster)
        missing = tuple(trial for trial in wanted if self._may(trial.technique))
        if everything or not missing:
            return missing
        problem = self._problem()
        placeable = without(problem, unplaceable(problem))
        plan = PLANNERS["list"](placeable)  # quick, and as good as it need be for this
        assert plan.schedule is not None
        return worthwhile(missing, problem, makespan_seconds=plan.schedule.makespan_seconds)

    def _run_all(self, wanted: Iterable[measuring.Fields]) -> None:
        """Run measuring orders, as many at once as devices allow: options are measured as they will run,
        with neighbours, since neighbours share memory and caches."""
        waiting = deque(self._new_order(**fields) for fields in wanted)
        while (waiting or self._running) and not (self._stopping and not self._running):
            for _ in range(len(waiting)):
                order = waiting.popleft()
                kind = self.cluster.device(order.devices[0]).kind
                free = self._queues.free(kind)
                node = self._same_node(free, len(order.devices))
                if node is None or self._stopping or self._failed(order):
                    if not (self._stopping or self._failed(order)):
                        waiting.append(order)
                    continue
                order = dataclasses.replace(order, devices=node)
                self._queues.occupy(order.devices, None)
                self._begin(order)
            if self._running:
                self._step()

    def _failed(self, order: Order) -> bool:
        return all(self._ledger.has_ended(member.task.identity) for member in order.members)

    def _same_node(self, devices: list[str], count: int) -> tuple[str, ...] | None:
        by_node: dict[str, list[str]] = {}
        for device in devices:
            by_node.setdefault(self.cluster.device(device).node, []).append(device)
        return next((tuple(found[:count]) for found in by_node.values() if len(found) >= count), None)

    # What happened

    def _step(self) -> None:
        self._take_commands()
        self._handle(self._engine.wait())
        self._observe(self)

    def _handle(self, events: list[Event]) -> None:
        accepted = [event for event in map(self._accept, events) if event is not None]
        self._ledger.record(accepted)
        for event in accepted:
            if event.kind == "lost":
                self._after_loss(event)
            elif event.kind == "stopped" and event.task in self._cancelled:
                self._ledger.record([self._ledger.event("cancelled", event.task, step=event.data["step"])])
            elif event.kind in ("waiting", "failed", "finished"):
                self._after_end(event)
            elif event.kind == "released":
                self._after_release(event)

    def _accept(self, event: Event) -> Event | None:
        """None for what a stale attempt says."""
        if event.kind == "released":
            running = self._running.get(event.data["placement"])
            assert running is not None
            duration = event.at_seconds - running.started_at
            return dataclasses.replace(event, data={**event.data, "duration_seconds": duration})
        if event.attempt and event.attempt != self._ledger[event.task].attempt:
            return None
        # What measuring says of a task that was cancelled meanwhile, or whose worker this loop itself ended.
        measured = not event.attempt and event.kind in ("failed", "lost", "rejected")
        return None if measured and (self._stopping or self._ledger.has_ended(event.task)) else event

    def _after_loss(self, event: Event) -> None:
        one = self._ledger[event.task]
        self._stale = self._stale or "a worker was lost"
        if event.task in self._cancelled:
            self._ledger.record([self._ledger.event("cancelled", event.task, step=one.saved_step)])
            return
        if one.losses > self.settings.retries:
            reason = (
                f"a task may be lost {self.settings.retries} times in a row without anything newly saved; "
                f"this was loss {one.losses}: {event.data['reason']}"
            )
            self._ledger.record(
                [self._ledger.event("failed", event.task, reason=reason, log=event.data.get("log", ""))]
            )

    def _after_end(self, event: Event) -> None:
        if event.kind == "failed" or event.data.get("reason"):
            self._stale = self._stale or f"a task {event.kind} early"

    def _judge(self) -> None:
        """Halve at every rung that all who still run have reached."""
        if self.workload.halving is None:
            return
        while (rung := halving.complete_rung(self.progress)) is not None:
            self._halve(rung)

    def _halve(self, rung: int) -> None:
        rule = self.workload.halving
        assert rule is not None
        resting = {t: one for t, one in self.progress.items() if one.status == "resting" and one.step == rung}
        missing = {t for t, one in resting.items() if rule.metric not in one.metrics}
        scores = {t: one.metrics[rule.metric] for t, one in resting.items() if t not in missing}
        onward = halving.survivors(rule, scores) if scores else set()
        self._ledger.record(
            self._ledger.event(
                "failed", task, reason=f"evaluation must report {rule.metric!r}, by which tasks are halved"
            )
            for task in missing
        )
        self._ledger.record(
            self._ledger.event(
                "promoted" if task in onward else "halved",
                task,
                step=rung,
                metric=rule.metric,
                value=value,
                reason="" if task in onward else f"{rule.metric} {value:.4g} at step {rung} was not among the best",
            )
            for task, value in scores.items()
        )
        self._stale = self._stale or "tasks were halved"

    def _after_release(self, event: Event) -> None:
        running = self._running.pop(event.data["placement"])
        self._queues.release(running.order.devices, running.option)
        if running.placement is None:
            return
        if self._moving & _tasks(running):
            self._stale = self._stale or "what ran is placed anew"
            self._moving = set()
        elif any(self._ledger[task].status == "pending" for task in _tasks(running)):
            self._stale = self._stale or "a placement ended before its tasks"
        self._idles = True
        predicted, taken = running.placement.duration_seconds, event.data["duration_seconds"]
        off = abs(taken - predicted)
        drifted = off > DRIFT * predicted and off > DRIFT_SECONDS
        if drifted and self._is_ripe(event.at_seconds) and self._queues.idle_and_behind():
            self._stale = self._stale or f"a placement took {taken:.1f} s for {predicted:.1f} s"

    def _is_ripe(self, now: float) -> bool:
        # Planning takes time too: a plan is followed for a tenth of its length before drift alone ends it.
        made_at, plan = self.plans[-1]
        assert plan.schedule is not None
        return now - made_at > DRIFT * plan.schedule.makespan_seconds

    # Commands

    def _take_commands(self) -> None:
        while not self._commands.empty():
            command, arguments = self._commands.get()
            if command == "stop":
                self._stop_all(arguments.get("reason", "a stop was asked for"))
            elif command == "cancel":
                self._cancel(arguments["task"])

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

    def _cancel(self, name: str) -> None:
        for task, record in self.tasks.items():
            if record.name != name or self._ledger.has_ended(task):
                continue
            held = [
                name
                for name, running in self._running.items()
                if running.placement and any(member.task.identity == task for member in running.order.members)
            ]
            self._cancelled.add(task)
            self._stale = self._stale or "a task was cancelled"
            for order in held:
                self._engine.stop(order, reason="cancelled")
            if not held:
                self._ledger.record([self._ledger.event("cancelled", task, step=self._ledger[task].saved_step)])

    def _fail(self, reasons: dict[str, str]) -> None:
        self._ledger.record(self._ledger.event("failed", task, reason=reason) for task, reason in reasons.items())


def _tasks(running: _Running) -> set[str]:
    return {member.task.identity for member in running.order.members}
