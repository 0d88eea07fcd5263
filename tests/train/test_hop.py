"""Visits of shards: each as `resident` trains."""

from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import HOP


class TestHop(TechniqueConformance):
    technique = HOP
