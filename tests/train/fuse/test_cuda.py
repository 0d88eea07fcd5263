"""On a device: steps that are captured, compiled and plain are the same, and equal to each task alone."""

import dataclasses
from typing import Any

import pytest
import torch

from dovetail.train import FUSE, RESIDENT
from dovetail.vocabulary import TechniqueRefused
from tests.train.fuse.gangs import Build, convolutional, decoder, gang, perceptron, transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    # torch's own compiler warns of what it does itself; that it failed, a session says in `failure`.
    pytest.mark.filterwarnings("ignore"),
]

GANGS: dict[str, tuple[Build, list[dict[str, Any]], float]] = {
    "perceptron": (perceptron, [{"rate": 0.01}, {"rate": 0.003, "drop": 0.1}], 1e-3),
    "convolutional": (convolutional, [{"rate": 0.01}, {"rate": 0.003}], 1e-3),
    "convolutional in bf16": (convolutional, [{"precision": "bf16"}, {"precision": "bf16", "rate": 0.01}], 2e-2),
    "attention in bf16": (decoder, [{"precision": "bf16"}, {"precision": "bf16", "rate": 3e-3}], 2e-2),
}


@pytest.mark.parametrize("how", ["off", "graph", "full"])
@pytest.mark.parametrize("name", GANGS)
def test_steps_are_those_of_each_task_alone(name: str, how: str) -> None:
    build, numbers, tolerance = GANGS[name]
    device = torch.device("cuda")
    session = FUSE.open(gang(build, numbers), device=device, threads=1, knobs={"compile": how})
    alone = [RESIDENT.open([member], device=device, threads=1) for member in gang(build, numbers)]
    for _ in range(6):
        found = torch.stack([report.loss for report in session.advance(range(len(numbers)))])
        expected = torch.stack([one.advance()[0].loss for one in alone])
        assert torch.allclose(found, expected.to(found.dtype), rtol=tolerance)
    assert session.failure is None
    session.advance((1,))
    session.close()


def test_attention_that_drops_is_fused_where_its_masks_are_allowed_and_learns() -> None:
    def allowing(**numbers: Any) -> Any:
        return dataclasses.replace(transformer(**numbers), allow={"attention-masks"})

    device, numbers = torch.device("cuda"), [{"rate": 0.1}, {"rate": 0.3}]
    assert "draws inside its kernel" in refusal_on(device, gang(transformer, numbers))
    session = FUSE.open(gang(allowing, numbers), device=device, threads=1)
    losses = [torch.stack([report.loss for report in session.advance((0, 1))]).cpu() for _ in range(60)]
    assert session.failure is None
    assert (torch.stack(losses[-8:]).mean(0) < torch.stack(losses[:8]).mean(0)).all()
    session.close()


def refusal_on(device: torch.device, members: list[Any]) -> str:
    with pytest.raises(TechniqueRefused) as refused:
        FUSE.open(members, device=device, threads=1)
    return str(refused.value)
