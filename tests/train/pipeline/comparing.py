"""How sessions are compared."""

import torch

from dovetail.testing import programs
from dovetail.train import RESIDENT

CPU = torch.device("cpu")


def run(session, steps=4):
    losses = [float(session.advance()[0].loss) for _ in range(steps)]
    return losses, session.state()


def assert_equal(session, program, steps=4):
    losses, expected = run(RESIDENT.open([programs.fresh(program)], device=CPU, threads=1), steps)
    found, state = run(session, steps)
    assert found == losses
    assert state.values == expected.values
    assert state.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(state.tensors[name], tensor), name
