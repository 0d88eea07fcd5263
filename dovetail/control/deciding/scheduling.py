"""Deciding by schedule: one plan for all that is left, followed until something makes another worth making."""

import dataclasses
from collections.abc import Callable, Iterator

from dovetail.control.deciding.base import Deciding
from dovetail.control.deciding.given_plan import reason_to_replan
from dovetail.control.deciding.outlook import Outlook, of_plan
from dovetail.control.state import Running, State
from dovetail.planning import PLANNERS, Problem, best_move, check, check_promises
from dovetail.planning.hopping import orders_of, plan_with_shards
from dovetail.planning.schedule.plan import plan_late
from dovetail.vocabulary import NoFeasiblePlan, Objective, Placement, Plan, TaskId
from dovetail.vocabulary.events import ShardOrderChosen, Warned

# A placement that took this much more or less than predicted makes the plan worth making again.
DRIFT = 0.10
DRIFT_SECONDS = 1.0
# How many of the newest plans are kept in memory, next to the first.
KEPT_PLANS = 8


class Scheduling(Deciding):
    """Plans what is left with a planner, starts placements as their devices fall free, and stops what would better run
    elsewhere. Begins with the schedule of the plan that was `given`, where that is still one for what there is."""

    def __init__(self, state: State, *, planner: Callable[[Problem], Plan], given: Plan | None = None) -> None:
        self._state, self._planner, self._given = state, planner, given
        self._moving: frozenset[TaskId] = frozenset()
        self._idles, self._asked_until = False, 0.0
        self._warned = self._because = ""

    def problem(self) -> Problem:
        """What is left to place, as of now. Tasks that nothing fits have failed, with the reason."""
        return self._state.placeable(self._state.problem())

    def _plan(self, problem: Problem) -> Plan:
        try:
            plan, due = plan_with_shards(problem, self._planner), problem.deadlines
        except NoFeasiblePlan as error:
            plan, due = self._late(problem, self._state.named(str(error))), {}
        assert plan.schedule is not None
        check(plan.schedule, self._state.cluster, running=problem.running, deadlines=due)
        check_promises(plan.schedule, problem)
        return plan

    def _late(self, problem: Problem, why: str) -> Plan:
        """The plan where deadlines cannot be kept any more: it is late by as little as can be. A run that begins with
        such is refused, unless it is open: one impossible task must not end all others."""
        state, is_dated = self._state, bool(problem.deadlines)
        is_dated |= Objective.parse(problem.objective).name == "spend"
        if not is_dated or not (state.plans or state.workload.open):
            raise NoFeasiblePlan(why)
        if why != self._warned:
            self._warned = why
            state.ledger.record([Warned(at_seconds=state.now(), message=why)])
        return plan_late(problem)

    def renew(self, because: str) -> None:
        """Plan anew, once something is known that can be planned."""
        state, problem = self._state, self.problem()
        because, self._because = self._because or because, ""
        if state.is_measuring and not (problem.families or problem.running):
            self._because = because
            return
        plan, because = self._first(problem, because) if self._given else (self._plan(problem), because)
        assert plan.schedule is not None
        state.plans.append((state.now(), plan))
        del state.plans[1:-KEPT_PLANS]  # the store has them all; a run of days would fill memory with them
        self._record_orders(plan, problem)
        state.ledger.record_plan(plan, workload=state.workload.name, because=because)
        state.queues.load(plan.schedule)
        self._idles = True

    def _record_orders(self, plan: Plan, problem: Problem) -> None:
        """Put on record in which order tasks read their shards, where that was the planner's to choose: from here on it
        is theirs."""
        ledger, tours = self._state.ledger, problem.tours
        ledger.record(
            ledger.event(ShardOrderChosen, task, epoch=tours[task].first_epoch, orders=orders)
            for task, orders in (orders_of(plan, problem) if tours else {}).items()
        )

    def _first(self, problem: Problem, because: str) -> tuple[Plan, str]:
        """The given plan, or where it does not apply any more another one, and why that was made."""
        given, self._given = self._given, None
        assert given is not None
        why = reason_to_replan(given, problem, self._state)
        if why:
            return self._plan(problem), f"{because}, and the plan that it was given does not apply: {why}"
        return dataclasses.replace(given, workload=None, cluster=None), because  # the store has both of their own

    def ready(self) -> list[Placement]:
        """What heads the queues of its devices."""
        return self._state.queues.ready()

    def unwanted(self) -> Iterator[tuple[str, str]]:
        """Where devices idle, what should run there instead; the plan that follows places it."""
        state = self._state
        idles, self._idles = self._idles and state.queues.idles(), False
        if not idles or self._moving or not state.running or state.now() < self._asked_until:
            return
        if any(each.placement and each.placement.shard for each in state.running.values()):
            return  # those who visit shards go where these lie
        problem = state.problem(moving=True)
        longest = max((placement.end_seconds for placement in problem.running), default=0.0)
        self._asked_until = state.now() + DRIFT * longest  # asking takes time too
        try:
            move = best_move(problem, planner=PLANNERS["list"])
        except NoFeasiblePlan:  # a deadline is in the way, with or without the move
            return
        if move is None:
            return
        (name,) = (n for n, each in state.running.items() if each.placement and set(move.placement.tasks) & each.tasks)
        self._moving = state.running[name].tasks
        objective = Objective.parse(problem.objective)
        comes_to = "ends everything in" if objective.name == "makespan" else f"brings the objective {objective} to"
        before, after = objective.show(move.before), objective.show(move.after)
        yield name, f"placing it anew {comes_to} {after} instead of {before}, moving counted in"

    def freed(self, running: Running, *, taken_seconds: float) -> str:
        """A new plan is due where the order was stopped to be moved, ended too early, or ran so long that others wait
        while devices idle, or may miss their deadlines."""
        assert running.placement is not None
        self._idles = True
        if self._moving & running.tasks:
            self._moving = frozenset()
            return "what ran is placed anew"
        if self._has_visited(running):
            return ""
        if any(self._state.ledger[task].status in ("pending", "paused", "cancelled") for task in running.tasks):
            return "a placement ended before its tasks"
        predicted = running.placement.duration_seconds
        off = abs(taken_seconds - predicted)
        drifted = off > DRIFT * predicted and off > DRIFT_SECONDS
        if drifted and self._is_ripe() and (self._state.queues.idle_and_behind() or self._state.is_dated()):
            return f"a placement took {taken_seconds:.1f} s for {predicted:.1f} s"
        return ""

    def _has_visited(self, running: Running) -> bool:
        """Whether an order took its task through a shard, as planned, and the next visit is planned, too."""
        (member, *_), placement = running.order.members, running.placement
        assert placement is not None
        one = self._state.ledger[member.task.identity]
        return bool(placement.shard) and not member.final and one.saved_step == member.until_step

    def outlook(self) -> dict[TaskId, Outlook]:
        """As the plan has it."""
        return of_plan(self._state)

    def _is_ripe(self) -> bool:
        # Planning takes time too: a plan is followed for a tenth of its length before drift alone ends it.
        made_at, plan = self._state.plans[-1]
        assert plan.schedule is not None
        return self._state.now() - made_at > DRIFT * plan.schedule.makespan_seconds
