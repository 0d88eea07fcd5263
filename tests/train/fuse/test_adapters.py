"""Adapters on one frozen base of transformers go through it together."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.train import FUSE, Training
from tests.train.fuse.gangs import Build, alone, assert_equal, fused, gang

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank one beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both."""
        found: torch.Tensor = self.base(x) + F.linear(F.linear(self.drop(x), self.down), self.up)
        return found


def training(model: nn.Module, rate: float) -> Training:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Training(
        model=model,
        batches=[torch.randint(32, (2, 6)) for _ in range(3)],
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
        optimizer=torch.optim.AdamW(trained, lr=rate),
    )


def llama() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    return model


def adapted(*, rate: float, seed: int) -> Training:
    model = llama().requires_grad_(False)
    torch.manual_seed(seed)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    return training(model, rate)


def by_peft(*, rate: float, seed: int) -> Training:
    peft = pytest.importorskip("peft")
    model = llama()
    torch.manual_seed(seed)
    wanted = peft.LoraConfig(r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    return training(peft.get_peft_model(model, wanted), rate)


@pytest.mark.parametrize("build", [adapted, by_peft])
def test_adapters_train_as_they_would_alone(build: Build) -> None:
    numbers = [{"rate": 1e-2, "seed": 1}, {"rate": 3e-3, "seed": 2}, {"rate": 1e-3, "seed": 3}]
    assert_equal(fused(build, numbers), alone(build, numbers), steps=6, tolerance=1e-4)


class Products(TorchDispatchMode):
    """Shapes of what is multiplied by one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.rows.append(args[0].shape[0])
        return func(*args, **(kwargs or {}))


def test_products_with_the_base_run_for_all_as_one() -> None:
    numbers = [{"rate": 1e-2, "seed": seed} for seed in range(3)]
    session = fused(adapted, numbers)
    with Products() as products:
        session.advance(range(3))
    # Seven linear layers in each of two blocks and the head, forward and backward but for what nobody wants: each is
    # one product for the 3 × 2 × 6 rows of all.
    assert set(products.rows) == {36}
    assert len(products.rows) >= 2 * 7 + 1


def test_tasks_that_share_the_base_hold_it_once() -> None:
    members = gang(adapted, [{"rate": 1e-2, "seed": seed} for seed in range(3)])
    FUSE.open(members, device=torch.device("cpu"), threads=1)
    frozen = {
        parameter.data_ptr()
        for member in members
        for parameter in member.training.model.parameters()
        if not parameter.requires_grad
    }
    assert len(frozen) == sum(not each.requires_grad for each in members[0].training.model.parameters())
