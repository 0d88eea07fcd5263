"""One rank on a CUDA device: NCCL, the generator of dropout, moves between host and device; no more shows on one."""

import pytest
import torch

from dovetail.testing import programs
from dovetail.train import REPLICATE, RESIDENT, SHARD, Ranks, checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if torch.distributed.is_initialized():
        pytest.skip("this process is a rank of other tests; run these with -m gpu")
    ranks = Ranks(rank=0, size=1, rendezvous=f"file://{tmp_path_factory.mktemp('ranks')}/meeting")
    ranks.join(CUDA)
    yield ranks
    ranks.leave()


@pytest.mark.parametrize("technique", [REPLICATE, SHARD], ids=lambda technique: technique.name)
@pytest.mark.parametrize("program", ["accumulate", "dropout", "frozen", "recompute", "tied"])
def test_one_rank_is_as_resident(technique, program, ranks, tmp_path):
    home = RESIDENT.open([programs.fresh(program)], device=CUDA, threads=1)
    expected = [float(home.advance()[0].loss) for _ in range(8)]
    first = technique.among(ranks).open([programs.fresh(program)], device=CUDA, threads=1)
    losses = [float(first.advance()[0].loss) for _ in range(4)]
    path, _ = checkpoint.write(tmp_path, first.state(), task=program, attempt=1)
    first.close()
    second = technique.among(ranks).open([programs.fresh(program)], device=CUDA, threads=1)
    second.load(checkpoint.read(path))
    losses += [float(second.advance()[0].loss) for _ in range(4)]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert second.evaluate() == pytest.approx(home.evaluate(), rel=1e-4)
    assert second.state().tensors.keys() == home.state().tensors.keys()
    second.close()
