"""Fused tasks hold what every technique must hold, each up to rounding of its own solo run."""

from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import FUSE, SessionMember


class TestFuse(TechniqueConformance):
    """Two of a kind, from other seeds."""

    technique = FUSE
    tolerance = 1e-4

    def gang(self, program: str) -> list[SessionMember]:
        """The program from two seeds."""
        return [programs.fresh(program, seed=seed) for seed in range(2)]
