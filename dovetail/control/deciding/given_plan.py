"""Whether a plan that was made earlier still is one for what a controller finds now, and if not, why.

A plan may be hours old when it is run: tasks may have finished or been edited since, an option may have been found not
to fit, devices may be gone. Knows plans and problems; decides nothing else.
"""

from collections import Counter
from collections.abc import Iterator

from dovetail.control.state import State
from dovetail.planning import Problem, broken_promises, violations
from dovetail.vocabulary import Objective, Option, Plan, TaskId


def reason_to_replan(plan: Plan, problem: Problem, state: State) -> str:
    """Why `plan` cannot be followed for `problem`, the one of now; empty where it can, placement by placement."""
    return next(_reasons(plan, problem, state), "")


def _reasons(plan: Plan, problem: Problem, state: State) -> Iterator[str]:
    assert plan.schedule is not None
    yield from _other_wishes(plan, state)
    yield from _other_tasks(plan, problem, state)
    offered = {_key(option) for option in problem.options}
    for placement in plan.schedule.placements:
        # What visits shards is made of what is offered for whole tasks.
        if (option := placement.option) and not placement.shard and _key(option) not in offered:
            tasks = ", ".join(_name(task, plan, state) for task in placement.tasks)
            yield f"{option.technique} on {option.count} × {option.kind} is no longer an option for {tasks}"
    broken = violations(plan.schedule, state.cluster, running=problem.running, deadlines=problem.deadlines)
    yield from map(state.named, (*broken, *broken_promises(plan.schedule, problem)))


def _other_wishes(plan: Plan, state: State) -> Iterator[str]:
    """What is wanted now, or may be used, and was not when the plan was made."""
    wanted = str(Objective.parse(state.workload.objective))
    if wanted != plan.objective:
        yield f"it is for objective {plan.objective}, and {wanted} is wanted"
    if plan.workload is not None and plan.workload.weights != state.workload.weights:
        yield "the weights of tasks are others"
    if plan.cluster is None:
        return
    if {device.name for device in plan.cluster.devices} != {device.name for device in state.cluster.devices}:
        yield "the cluster has other devices"
    prices = [{kind.name: kind.price_per_hour for kind in each.kinds} for each in (plan.cluster, state.cluster)]
    if wanted.startswith("spend") and prices[0] != prices[1]:
        yield "the prices of devices are others"


def _other_tasks(plan: Plan, problem: Problem, state: State) -> Iterator[str]:
    """What has become of tasks since: they ended, went on, were edited or added."""
    assert plan.schedule is not None
    planned = Counter[TaskId]()
    for placement in plan.schedule.placements:
        for task, steps in zip(placement.tasks, placement.steps, strict=True):
            planned[task] += steps
    waiting = {member.task: member.steps for family in problem.families for member in family.members}
    for task in planned:
        if task not in state.tasks:
            yield f"{_name(task, plan, state)} is no longer in the workload"
        elif task not in waiting:
            yield f"{_name(task, plan, state)} is {state.ledger[task].status} by now"
        elif waiting[task] != planned[task]:
            yield f"{_name(task, plan, state)} has {waiting[task]} steps left, not {planned[task]}"
    yield from (f"{_name(task, plan, state)} is not in it" for task in waiting if task not in planned)


def _key(option: Option) -> tuple[object, ...]:
    """What makes an option the same one, however often it was measured."""
    return option.families, option.technique, option.kind, option.count, option.knobs, option.feed_cores


def _name(task: TaskId, plan: Plan, state: State) -> str:
    tasks = [*state.tasks.values(), *(plan.workload.tasks if plan.workload else ())]
    return next((repr(each.name) for each in tasks if each.identity == task), repr(task))
