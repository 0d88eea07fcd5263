"""Drift: what changed between a reference and what came later, and for which combination of attributes."""

from dovetail.watch.drift.compare import Drift, drift
from dovetail.watch.drift.detector import DriftDetector

__all__ = ["Drift", "DriftDetector", "drift"]
