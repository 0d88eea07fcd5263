"""Where others look at runs: MLflow, Weights & Biases, TensorBoard. A process for each reads the store and sends what
is new; the packages are imported there, and nowhere else."""

from dovetail.trackers.addresses import TRACKERS, TrackerAddress, check_trackers, parse_tracker
from dovetail.trackers.base import OpenedRun, RunFacts, Tracker

__all__ = [
    "TRACKERS",
    "OpenedRun",
    "RunFacts",
    "Tracker",
    "TrackerAddress",
    "check_trackers",
    "parse_tracker",
]
