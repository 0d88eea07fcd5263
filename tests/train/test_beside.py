"""Tasks beside each other hold what every technique must; on a device they are tested with `graph`."""

from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import BESIDE, SessionMember


class TestBeside(TechniqueConformance):
    technique = BESIDE

    def gang(self, program: str) -> list[SessionMember]:
        return [self.fresh(program) for _ in range(2)]
