"""Pure planning: from profiles, tasks and a cluster to a schedule with its bound and its reasons.

Floor 1. Reads records and returns records: no torch, no clock, no environment, no randomness of its own.
"""

from collections.abc import Callable

from dovetail.plan import effort, joint, listing
from dovetail.plan.bound import lower_bound
from dovetail.plan.candidates import Trial, counts, options, trials
from dovetail.plan.check import check, violations
from dovetail.plan.explain import Moved, differences, explain
from dovetail.plan.moves import Move, best_move
from dovetail.plan.predict import PREDICTORS, Predictor
from dovetail.plan.problem import Problem
from dovetail.plan.worth import worthwhile
from dovetail.vocabulary import Plan

PLANNERS: dict[str, Callable[[Problem], Plan]] = {
    "at once": effort.plan_at_once,
    "effort": effort.plan,
    "joint": joint.plan,
    "list": listing.plan,
}

__all__ = [
    "PLANNERS",
    "PREDICTORS",
    "Move",
    "Moved",
    "Predictor",
    "Problem",
    "Trial",
    "best_move",
    "check",
    "counts",
    "differences",
    "explain",
    "lower_bound",
    "options",
    "trials",
    "violations",
    "worthwhile",
]
