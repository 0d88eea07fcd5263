"""What Python users and the command line share: plan, run, profile, look at the cluster. Prints nothing."""

from dovetail.verbs.verbs import cluster, controlling, plan, profile, run

__all__ = ["cluster", "controlling", "plan", "profile", "run"]
