"""What planners choose between: which options are worth a trial, and which of the measured and predicted ones fit.

Knows the cluster and the profiles. Does not know tasks, how long they train, or what else runs: an option
that fits an empty node is a candidate, and when it may start is the planner's business.
"""

from dovetail.plan.candidates.counts import counts
from dovetail.plan.candidates.fitting import misfit
from dovetail.plan.candidates.offers import options
from dovetail.plan.candidates.trials import Trial, trials

__all__ = ["Trial", "counts", "misfit", "options", "trials"]
