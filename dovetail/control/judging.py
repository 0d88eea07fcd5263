"""Successive halving, carried out: who goes on past a rung is put on record."""

from typing import Any

from dovetail.control import halving
from dovetail.control.state import State
from dovetail.vocabulary import Halving, TaskId
from dovetail.vocabulary.events import TaskFailed, TaskHalved, TaskPromoted


def judge(state: State) -> bool:
    """Halve at every rung that all who still run, or may yet come, have reached; whether there was one. Where halving
    is asynchronous, judge each task that rests at a rung."""
    rule = state.workload.halving
    if rule is None:
        return False
    if rule.asynchronous:
        return _judge_arrivals(state, rule)
    judged = False
    if state.to_come:
        return False
    while (rung := halving.complete_rung({task: state.ledger[task] for task in state.tasks})) is not None:
        _halve(state, rung)
        judged = True
    return judged


def _judge_arrivals(state: State, rule: Halving) -> bool:
    resting = [task for task in state.tasks if state.ledger[task].status == "resting"]
    for task in resting:
        rung, value = state.ledger[task].step, state.ledger[task].metrics.get(rule.metric)
        arrived = [found.judged[rung] for each in state.tasks if rung in (found := state.ledger[each]).judged]
        _record(state, rule, task, goes_on=value is not None and halving.goes_on(rule, value, arrived))
    return bool(resting)


def _halve(state: State, rung: int) -> None:
    rule, ledger = state.workload.halving, state.ledger
    assert rule is not None
    progress = {task: ledger[task] for task in state.tasks}
    resting = {t: one for t, one in progress.items() if one.status == "resting" and one.step == rung}
    scores = {t: one.metrics[rule.metric] for t, one in resting.items() if rule.metric in one.metrics}
    onward = halving.survivors(rule, scores) if scores else set()
    for task in resting:
        _record(state, rule, task, goes_on=task in onward)


def _record(state: State, rule: Halving, task: TaskId, *, goes_on: bool) -> None:
    """Put on record whether a task that rests goes on."""
    ledger, one = state.ledger, state.ledger[task]
    value = one.metrics.get(rule.metric)
    if value is None:
        reason = f"evaluation must report {rule.metric!r}, by which tasks are halved"
        ledger.record([ledger.event(TaskFailed, task, reason=reason)])
        return
    judged: dict[str, Any] = {"step": one.step, "metric": rule.metric, "value": value}
    if goes_on:
        ledger.record([ledger.event(TaskPromoted, task, **judged)])
    else:
        reason = f"{rule.metric} {value:.4g} at step {one.step} was not among the best"
        ledger.record([ledger.event(TaskHalved, task, reason=reason, **judged)])
