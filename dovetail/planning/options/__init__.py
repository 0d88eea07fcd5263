"""What planners choose between: which options are worth a trial, and which of the measured and predicted ones fit.

Knows the cluster and the profiles. Does not know tasks, how long they train, or what else runs: an option
that fits an empty node is a candidate, and when it may start is the planner's business.
"""

from dovetail.planning.options.derivation import derive_options, trials

__all__ = ["derive_options", "trials"]
