"""Successive halving, carried out: who goes on past a rung is put on record."""

from typing import Any

from dovetail.control import halving
from dovetail.control.state import State
from dovetail.vocabulary.events import TaskFailed, TaskHalved, TaskPromoted


def judge(state: State) -> bool:
    """Halve at every rung that all who still run have reached; whether there was one."""
    if state.workload.halving is None:
        return False
    judged = False
    while (rung := halving.complete_rung({task: state.ledger[task] for task in state.tasks})) is not None:
        _halve(state, rung)
        judged = True
    return judged


def _halve(state: State, rung: int) -> None:
    rule, ledger = state.workload.halving, state.ledger
    assert rule is not None
    progress = {task: ledger[task] for task in state.tasks}
    resting = {t: one for t, one in progress.items() if one.status == "resting" and one.step == rung}
    missing = {t for t, one in resting.items() if rule.metric not in one.metrics}
    scores = {t: one.metrics[rule.metric] for t, one in resting.items() if t not in missing}
    onward = halving.survivors(rule, scores) if scores else set()
    ledger.record(
        ledger.event(TaskFailed, task, reason=f"evaluation must report {rule.metric!r}, by which tasks are halved")
        for task in missing
    )
    for task, value in scores.items():
        judged: dict[str, Any] = {"step": rung, "metric": rule.metric, "value": value}
        if task in onward:
            ledger.record([ledger.event(TaskPromoted, task, **judged)])
        else:
            reason = f"{rule.metric} {value:.4g} at step {rung} was not among the best"
            ledger.record([ledger.event(TaskHalved, task, reason=reason, **judged)])
