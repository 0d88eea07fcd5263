"""Pure planning: from profiles, tasks and a cluster to a schedule with its bound and its reasons.

Floor 1. Reads records and returns records: no torch, no clock, no environment, no randomness of its own.
"""

from collections.abc import Callable

from dovetail.planning.checker import check, violations
from dovetail.planning.explanation import Moved, differences, explain
from dovetail.planning.fitting import counts
from dovetail.planning.options import derive_options, trials
from dovetail.planning.problem import Problem
from dovetail.planning.schedule import effort, joint, listing
from dovetail.planning.schedule.bound import lower_bound
from dovetail.planning.schedule.moves import Move, best_move
from dovetail.planning.schedule.worth import worthwhile
from dovetail.planning.techniques import TECHNIQUES, TechniqueSpec, Trial, spec_of, techniques, trial_of
from dovetail.vocabulary import Plan

PLANNERS: dict[str, Callable[[Problem], Plan]] = {
    "at once": effort.plan_at_once,
    "effort": effort.plan,
    "joint": joint.plan,
    "list": listing.plan,
}

__all__ = [
    "PLANNERS",
    "TECHNIQUES",
    "Move",
    "Moved",
    "Problem",
    "TechniqueSpec",
    "Trial",
    "best_move",
    "check",
    "counts",
    "derive_options",
    "differences",
    "explain",
    "lower_bound",
    "spec_of",
    "techniques",
    "trial_of",
    "trials",
    "violations",
    "worthwhile",
]
