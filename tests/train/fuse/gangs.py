"""Gangs for the tests of fuse: programs whose members differ in everything that may differ."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dovetail.testing import programs
from dovetail.train import FUSE, RESIDENT, SessionMember, Training
from dovetail.train.fuse import FuseSession

CPU = torch.device("cpu")
Build = Callable[..., Training]


def gang(build: Build, numbers: Sequence[dict[str, Any]]) -> list[SessionMember]:
    """One member for each set of numbers, from a seed of its own."""
    return [programs.fresh(lambda each=each: build(**each), seed=seed) for seed, each in enumerate(numbers)]


def fused(build: Build, numbers: Sequence[dict[str, Any]], **knobs: Any) -> FuseSession:
    """A session of that gang."""
    return FUSE.open(gang(build, numbers), device=CPU, threads=1, knobs=knobs)


def alone(build: Build, numbers: Sequence[dict[str, Any]]) -> list[Any]:
    """Each member by itself."""
    return [RESIDENT.open([member], device=CPU, threads=1) for member in gang(build, numbers)]


def assert_equal(fused: FuseSession, alone: Sequence[Any], *, steps: int, tolerance: float) -> None:
    """Losses of every step and all tensors at the end are equal up to rounding."""
    members = range(len(alone))
    for step in range(steps):
        found = [float(report.loss) for report in fused.advance(members)]
        expected = [float(one.advance()[0].loss) for one in alone]
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=tolerance), (step, found, expected)
    for number, one in enumerate(alone):
        mine, its = fused.state(number), one.state()
        assert mine.step == its.step
        assert mine.tensors.keys() == its.tensors.keys()
        for name, tensor in its.tensors.items():
            assert mine.tensors[name].dtype == tensor.dtype, name
            assert _distance(mine.tensors[name], tensor) <= 10 * tolerance, (number, name)


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How far apart as a share of the norm, since rounding near zero has no bound of its own."""
    return float((found.double() - expected.double()).norm() / (expected.double().norm() + 1e-12))


def classes(count: int, *shape: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of six with a label of four."""
    return [(torch.randn(6, *shape), torch.randint(4, (6,))) for _ in range(count)]


def entropy(model: nn.Module, batch: Any) -> Any:
    """Cross entropy, and how many were right."""
    logits = model(batch[0])
    return F.cross_entropy(logits, batch[1]), {"right": (logits.argmax(1) == batch[1]).float().mean(), "of": 6}


def perceptron(*, rate: float = 0.1, drop: float = 0.0, accumulate: int = 1, **more: Any) -> Training:
    """Three layers under AdamW."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(drop), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, **more)
    return Training(model=model, batches=classes(5, 8), loss=entropy, optimizer=optimizer, accumulate=accumulate)


def convolutional(*, rate: float = 0.05, norm: bool = True, precision: str = "fp32", **more: Any) -> Training:
    """Two convolutions under SGD."""
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=not norm),  # a norm takes what a bias gives, but for rounding
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, **more)
    return Training(model=model, batches=classes(4, 2, 8, 8), loss=entropy, optimizer=optimizer, precision=precision)


class Decoder(nn.Module):
    """A small causal transformer with torch's attention."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(11, 16), nn.Embedding(7, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.inner, self.outer = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = self.drop(self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device)))
        query, key, value = self.inner(self.norms[0](hidden)).unflatten(-1, (3, 2, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.drop(self.outer(mixed.transpose(1, 2).flatten(2)))
        hidden = hidden + self.drop(self.narrow(F.gelu(self.wide(self.norms[1](hidden)))))
        logits: torch.Tensor = self.head(hidden)
        return logits


def decoder(*, rate: float = 1e-2, drop: float = 0.1, precision: str = "fp32", clip: float | None = 1.0) -> Training:
    """A language model under Adam, with a schedule and clipping."""
    model = Decoder(drop)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=0.01)
    return Training(
        model=model,
        batches=[torch.randint(11, (3, 8)) for _ in range(4)],
        loss=lambda model, words: F.cross_entropy(model(words[:, :-1]).flatten(0, 1).float(), words[:, 1:].flatten()),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=40),
        precision=precision,
        clip_norm=clip,
    )


def transformer(*, kind: str = "bert", rate: float = 1e-3, drop: float = 0.1, precision: str = "fp32") -> Training:
    """A model of transformers as it comes: dropout in its attention too, and an embedding with a row for padding."""
    import transformers

    size = {"vocab_size": 20, "attn_implementation": "sdpa"}
    if kind == "bert":
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        shape |= {"max_position_embeddings": 8, "attention_probs_dropout_prob": drop, "hidden_dropout_prob": drop}
        model: nn.Module = transformers.BertForMaskedLM(transformers.BertConfig(**size, **shape))
    else:
        shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "attn_pdrop": drop, "resid_pdrop": drop}
        marks = {"bos_token_id": None, "eos_token_id": None}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **shape, **marks))
    for name, parameter in model.named_parameters():
        if name.endswith("key.bias"):  # whose gradient is nothing but rounding, and would be all there is of it
            nn.init.normal_(parameter)
    return Training(
        model=model,
        batches=[torch.randint(20, (3, 8)) for _ in range(4)],
        loss=lambda model, words: model(input_ids=words, labels=words).loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        precision=precision,
    )
