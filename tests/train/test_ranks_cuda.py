"""One rank on a CUDA device: NCCL, the generator of dropout, moves between host and device; no more shows on one."""

import pytest
import torch

from dovetail.testing import programs
from dovetail.train import PIPELINE, REPLICATE, RESIDENT, SHARD, Ranks, checkpoint
from tests.train.pipeline import towers

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


@pytest.mark.parametrize("timetable", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_pipeline_of_one_rank_is_as_resident(timetable, recompute, ranks):
    home = RESIDENT.open([programs.fresh("accumulate")], device=CUDA, threads=1)
    expected = [float(home.advance()[0].loss) for _ in range(6)]
    knobs = {"timetable": timetable, "recompute": recompute}
    session = PIPELINE.among(ranks).open([programs.fresh("accumulate")], device=CUDA, threads=1, knobs=knobs)
    assert [float(session.advance()[0].loss) for _ in range(6)] == pytest.approx(expected, rel=1e-4)
    state, wanted = session.state(), home.state()
    assert state.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        torch.testing.assert_close(state.tensors[name].cpu(), tensor.cpu(), rtol=1e-4, atol=1e-5)
    session.close()


@pytest.mark.parametrize("timetable", ["1f1b", "stashing", "2bw"])
def test_the_devices_own_clock_times_a_pipeline(timetable, ranks):
    knobs = {"timetable": timetable}
    session = PIPELINE.among(ranks).open([programs.fresh(towers.of(dropout=0.1))], device=CUDA, threads=1, knobs=knobs)
    for _ in range(4):
        session.advance()
    (rows,) = session.timings()["ranks"]
    session.close()
    moments = [moment for *_, start, end in rows for moment in (start, end)]
    assert {row[0] for row in rows} >= {"forward", "backward"}
    assert moments == sorted(moments)
    assert 0 < moments[-1] - moments[0] < 60
