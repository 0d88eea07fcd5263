"""Pure planning: from profiles, tasks and a cluster to a schedule with its bound and its reasons.

Floor 1. Reads records and returns records: no torch, no clock, no environment, no randomness of its own.
"""

from collections.abc import Callable

from dovetail.planning.checker import check, violations
from dovetail.planning.explanation import explain
from dovetail.planning.fitting import counts
from dovetail.planning.options import derive_options, trials
from dovetail.planning.problem import Problem
from dovetail.planning.promise_checker import broken_promises, check_promises
from dovetail.planning.schedule.bounds import lower_bound
from dovetail.planning.schedule.moves import Move, best_move
from dovetail.planning.schedule.plan import plan, plan_in_proportion, plan_late, plan_list
from dovetail.planning.schedule.worth import worthwhile
from dovetail.planning.techniques import TECHNIQUES, TechniqueSpec, Trial, spec_of, trial_of
from dovetail.vocabulary import Plan

#: Without search; as much of it as the schedule's length is worth, which is the default; and all that is asked for.
PLANNERS: dict[str, Callable[[Problem], Plan]] = {
    "list": plan_list,
    "proportionate": plan_in_proportion,
    "search": plan,
}

__all__ = [
    "PLANNERS",
    "TECHNIQUES",
    "Move",
    "Problem",
    "TechniqueSpec",
    "Trial",
    "best_move",
    "broken_promises",
    "check",
    "check_promises",
    "counts",
    "derive_options",
    "explain",
    "lower_bound",
    "plan",
    "plan_in_proportion",
    "plan_late",
    "plan_list",
    "spec_of",
    "trial_of",
    "trials",
    "violations",
    "worthwhile",
]
