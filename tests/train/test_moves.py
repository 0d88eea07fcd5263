"""A task that is moved from technique to technique learns what it would have learned at home."""

import pytest
import torch

from dovetail.testing import programs
from dovetail.train import REPLICATE, RESIDENT, SHARD, checkpoint

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
STEPS = 5


def opened(technique, program, followers):
    if technique.ranked:
        return followers.open(technique, program)
    return technique.open([programs.fresh(program)], device=CPU, threads=1)


@pytest.mark.parametrize("program", ["accumulate", "dropout", "frozen", "generator", "momentum", "recompute", "tied"])
def test_resident_replicate_shard_resident(program, followers, tmp_path):
    way = [RESIDENT, REPLICATE, SHARD, RESIDENT]
    home = RESIDENT.open([programs.fresh(program)], device=CPU, threads=1)
    expected = [float(home.advance()[0].loss) for _ in range(STEPS * len(way))]
    losses, path = [], None
    for number, technique in enumerate(way):
        session = opened(technique, program, followers)
        if path is not None:
            session.load(checkpoint.read(path))
        losses += [float(session.advance()[0].loss) for _ in range(STEPS)]
        path, _ = checkpoint.write(tmp_path, session.state(), task=program, attempt=number + 1)
        session.close()
    assert losses == pytest.approx(expected, rel=1e-5)
    found, unmoved = checkpoint.read(path), home.state()
    assert found.step == unmoved.step == STEPS * len(way)
    assert found.tensors.keys() == unmoved.tensors.keys()
    for name, tensor in unmoved.tensors.items():
        assert torch.allclose(found.tensors[name], tensor, rtol=1e-5, atol=1e-6), name
    # Where it stands in its batches and what it draws next are no matter of rounding.
    for part in ("feed", "random"):
        assert found.values[part] == unmoved.values[part]
