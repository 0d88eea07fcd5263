"""What Python users and the command line share: plan, run, profile, look at the cluster. Shows progress alone."""

from dovetail.verbs.make_plan import plan
from dovetail.verbs.measure import cluster, profile
from dovetail.verbs.run_workload import run

__all__ = ["cluster", "plan", "profile", "run"]
