"""Each task of a stack trains as it would alone, up to rounding."""

from typing import Any

import pytest

from tests.train.fuse.gangs import Build, alone, assert_equal, convolutional, decoder, fused, perceptron, transformer

GANGS: dict[str, tuple[Build, list[dict[str, Any]], float]] = {
    "rates, decays and betas": (
        perceptron,
        [{"rate": 0.1}, {"rate": 0.01, "weight_decay": 0.1}, {"rate": 0.03, "betas": (0.8, 0.95), "eps": 1e-6}],
        1e-4,
    ),
    "dropout at other rates": (perceptron, [{"drop": 0.5}, {"drop": 0.1}, {"drop": 0.0}], 1e-4),
    "other numbers of microbatches": (perceptron, [{"accumulate": 2}, {"accumulate": 1}, {"accumulate": 2}], 1e-4),
    "convolutions with running statistics": (convolutional, [{"momentum": 0.9}, {"momentum": 0.5}, {}], 1e-4),
    "convolutions without": (
        convolutional,
        [
            {"norm": False, "momentum": 0.9, "nesterov": True},
            {"norm": False, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
        ],
        1e-4,
    ),
    "attention, clipped": (decoder, [{}, {"rate": 3e-3, "clip": None}, {"clip": 0.1}], 1e-4),
    "convolutions in bf16": (convolutional, [{"precision": "bf16"}, {"precision": "bf16", "rate": 0.01}], 2e-2),
    "attention in bf16": (decoder, [{"precision": "bf16"}, {"precision": "bf16", "rate": 3e-3}], 2e-2),
    "BERT as it comes": (transformer, [{"rate": 0.1}, {"rate": 0.03}, {"rate": 0.3}], 1e-4),
    "GPT-2 as it comes": (transformer, [{"kind": "gpt2", "rate": 0.1}, {"kind": "gpt2", "rate": 0.3}], 1e-4),
    "BERT in bf16": (transformer, [{"precision": "bf16"}, {"precision": "bf16", "rate": 0.01}], 2e-2),
    "attention in bf16 throughout": (decoder, [{"precision": "bf16-pure"}, {"precision": "bf16-pure"}], 2e-2),
}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on a CPU without bf16
@pytest.mark.parametrize("name", GANGS)
def test_a_stack_trains_as_its_members_would_alone(name: str) -> None:
    build, numbers, tolerance = GANGS[name]
    assert_equal(fused(build, numbers), alone(build, numbers), steps=20, tolerance=tolerance)
