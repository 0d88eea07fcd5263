"""Policies: pure functions from a problem to an allocation, `allocate(problem) -> Allocation`.

Every objective is a function of effective throughput, rate(m) = Σ share × rate over the options that run task m, so
each is an optimisation over shares (Narayanan et al., Gavel, OSDI 2020). Gangs of several tasks, and options of one
task on several counts and techniques, are rows of the same problem. The formula is in each policy's docstring.

Imports NumPy, so it is not imported with `dovetail.planning`.
"""

from dovetail.planning.share.policies import (
    completions,
    fair_spend,
    finish_time_fairness,
    first_come,
    hierarchical,
    isolated,
    makespan,
    max_min_fairness,
    proportional,
    shortest_first,
    spend,
    spend_with_deadlines,
    throughput,
    water_filling,
)
from dovetail.planning.share.policies.blindness import Policy, equal_rates
from dovetail.planning.share.policies.example_problem import example

POLICIES: dict[str, Policy] = {
    "completions": completions.allocate,
    "fair_spend": fair_spend.allocate,
    "finish_time_fairness": finish_time_fairness.allocate,
    "first_come": first_come.allocate,
    "hierarchical": hierarchical.allocate,
    "isolated": isolated.allocate,
    "makespan": makespan.allocate,
    "max_min_fairness": max_min_fairness.allocate,
    "proportional": proportional.allocate,
    "shortest_first": shortest_first.allocate,
    "spend": spend.allocate,
    "spend_with_deadlines": spend_with_deadlines.allocate,
    "throughput": throughput.allocate,
    "water_filling": water_filling.allocate,
}
#: Those that leave nothing that somebody could use without taking it from another; tested to be so. From a thousand
#: unlike tasks on, what the worst off leave is left to the rounds (`levels.raise_together`).
PARETO = ("completions", "finish_time_fairness", "makespan", "max_min_fairness", "throughput", "water_filling")
#: Those under which no task is worse off than with an equal part of every kind; tested to be so.
SHARING = ("fair_spend", "finish_time_fairness", "isolated", "max_min_fairness", "water_filling")

__all__ = ["PARETO", "POLICIES", "SHARING", "Policy", "equal_rates", "example"]
