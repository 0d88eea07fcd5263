"""A task that is moved from technique to technique learns what it would have learned at home."""

import pytest
import torch

from dovetail.testing import programs
from dovetail.train import FUSE, INTERLEAVE, REPLICATE, RESIDENT, SHARD, SPILL, checkpoint

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
STEPS = 5


def opened(technique, program, followers):
    """A session whose first member is the task; fused, it has company."""
    if technique.ranked:
        return followers.open(technique, program)
    members = [programs.fresh(program, seed=seed) for seed in range(2 if technique in (FUSE, INTERLEAVE) else 1)]
    return technique.open(members, device=CPU, threads=1)


def moved(way, program, followers, directory):
    """The losses on the way from technique to technique, a few steps with each, and the last checkpoint."""
    losses, path = [], None
    for number, technique in enumerate(way):
        session = opened(technique, program, followers)
        if path is not None:
            session.load(checkpoint.read(path))
        losses += [float(session.advance([0])[0].loss) for _ in range(STEPS)]
        path, _ = checkpoint.write(directory, session.state(), task=program, attempt=number + 1)
        session.close()
    return losses, checkpoint.read(path)


@pytest.mark.parametrize("program", ["accumulate", "dropout", "tied"])
def test_bits_are_kept_where_techniques_allow(program, tmp_path):
    way = [RESIDENT, SPILL, INTERLEAVE, RESIDENT]
    home = RESIDENT.open([programs.fresh(program)], device=CPU, threads=1)
    expected = [float(home.advance()[0].loss) for _ in range(STEPS * len(way))]
    losses, found = moved(way, program, None, tmp_path)
    assert losses == expected
    unmoved = home.state()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in unmoved.tensors.items())


@pytest.mark.parametrize("program", ["accumulate", "dropout", "frozen", "generator", "momentum", "recompute", "tied"])
def test_moved_from_technique_to_technique(program, followers, tmp_path):
    way = [RESIDENT, REPLICATE, SHARD, FUSE, RESIDENT]
    if FUSE.refuse([programs.fresh(program, seed=seed) for seed in range(2)]):
        way.remove(FUSE)
        assert program == "recompute"  # which fuse says it cannot do
    home = RESIDENT.open([programs.fresh(program)], device=CPU, threads=1)
    expected = [float(home.advance()[0].loss) for _ in range(STEPS * len(way))]
    losses, found = moved(way, program, followers, tmp_path)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[:STEPS] == expected[:STEPS]
    unmoved = home.state()
    assert found.step == unmoved.step == STEPS * len(way)
    assert found.tensors.keys() == unmoved.tensors.keys()
    for name, tensor in unmoved.tensors.items():
        assert torch.allclose(found.tensors[name], tensor, rtol=1e-5, atol=1e-6), name
    # Where it stands in its batches and what it draws next are no matter of rounding.
    for part in ("feed", "random"):
        assert found.values[part] == unmoved.values[part]
