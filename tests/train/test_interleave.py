"""Interleaved tasks train as if each were alone."""

import pytest
import torch

from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import INTERLEAVE, RESIDENT, SessionMember

CPU = torch.device("cpu")


class TestInterleave(TechniqueConformance):
    """Two unlike tasks."""

    technique = INTERLEAVE

    def gang(self, program: str) -> list[SessionMember]:
        """The program and another."""
        return [programs.fresh(program), programs.fresh("momentum", seed=1)]


@pytest.mark.parametrize("budget", [3 << 14, 1 << 30])
def test_a_gang_trains_as_its_members_would_alone(budget: int) -> None:
    names = ["dropout", "bf16", "shared", "accumulate"]
    gang = INTERLEAVE.open(
        [programs.fresh(name, seed=seed) for seed, name in enumerate(names)],
        device=CPU,
        threads=1,
        knobs={"device_bytes": budget, "depth": 1},
    )
    alone = [RESIDENT.open([programs.fresh(name, seed=seed)], device=CPU, threads=1) for seed, name in enumerate(names)]
    for _ in range(6):
        found = [float(report.loss) for report in gang.advance(range(len(names)))]
        assert found == [float(one.advance()[0].loss) for one in alone]
    for number, one in enumerate(alone):
        state = gang.state(number)
        for name, tensor in one.state().tensors.items():
            assert torch.equal(state.tensors[name], tensor), (names[number], name)
    gang.close()
