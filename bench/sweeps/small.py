"""Twenty-five small models of five architectures, as people bring them: five learning rates of each.

Models come from `transformers` with their usual dropout, the convolutional one has batch norm, the recurrent one is
torch's own. Data are drawn: tokens of a chain in which each decides most of the next, pictures of ten blurred patterns.
"""

import itertools
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt

STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "400"))
RATES = (3e-4, 5e-4, 1e-3, 2e-3, 3e-3)[: int(os.environ.get("DOVETAIL_BENCH_RATES", "5"))]
PRECISION = os.environ.get("DOVETAIL_BENCH_PRECISION", "bf16")
VOCABULARY, LENGTH = 4096, 128


def chain(rows: int, length: int = LENGTH) -> torch.Tensor:
    """Rows of tokens; nine of ten follow from the one before."""
    generator = torch.Generator().manual_seed(7)
    following = torch.randperm(VOCABULARY, generator=generator)
    tokens = torch.randint(VOCABULARY, (rows, length), generator=generator)
    follows = torch.rand(rows, length, generator=generator) < 0.9
    for place in range(1, length):
        tokens[:, place] = torch.where(follows[:, place], following[tokens[:, place - 1]], tokens[:, place])
    return tokens


def pictures(count: int = 2048) -> TensorDataset:
    """Pictures of 32 by 32 of ten classes."""
    generator = torch.Generator().manual_seed(8)
    patterns = nn.functional.interpolate(torch.randn(10, 3, 8, 8, generator=generator), scale_factor=4)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 3, 32, 32, generator=generator), labels)


def training(model: nn.Module, data: TensorDataset, loss, learning_rate: float, *, rows: int, **more) -> dt.Training:
    return dt.Training(
        model=model,
        batches=DataLoader(data, batch_size=rows, shuffle=True),
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
        **more,
    )


def each_rate(*programs) -> list[dt.Task]:
    """Each program with each learning rate, none from the same first weights as another."""
    pairs = itertools.product(programs, RATES)
    return [
        dt.task(program, name=f"{program.__name__} {rate:g}", learning_rate=rate, seed=10 * number, steps=STEPS)
        for number, (program, rate) in enumerate(pairs)
    ]


def gpt2(learning_rate: float) -> dt.Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, n_embd=256, n_head=8, n_positions=LENGTH, vocab_size=VOCABULARY)
    return training(
        GPT2LMHeadModel(config),
        TensorDataset(chain(1024)),
        lambda model, batch: model(input_ids=batch[0], labels=batch[0]).loss,
        learning_rate,
        rows=16,
        precision=PRECISION,
    )


def bert(learning_rate: float) -> dt.Training:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    tokens = chain(2048)
    return training(
        BertForSequenceClassification(config),
        TensorDataset(tokens, (tokens[:, 0] < VOCABULARY // 2).long()),
        lambda model, batch: model(input_ids=batch[0], labels=batch[1]).loss,
        learning_rate,
        rows=32,
        precision=PRECISION,
    )


def vit(learning_rate: float) -> dt.Training:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=768,
        num_labels=10,
    )
    return training(
        ViTForImageClassification(config),
        pictures(),
        lambda model, batch: model(pixel_values=batch[0], labels=batch[1]).loss,
        learning_rate,
        rows=64,
        precision=PRECISION,
    )


class Block(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        stride = 1 if width == out else 2
        self.main = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.around = nn.Identity() if width == out else nn.Conv2d(width, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.around(x))


def convolutional(learning_rate: float) -> dt.Training:
    widths = (32, 32, 32, 64, 64, 64, 128, 128, 128)
    blocks = [Block(a, b) for a, b in itertools.pairwise(widths)]
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
    )
    return training(
        model,
        pictures(),
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        learning_rate,
        rows=64,
        clip_norm=1.0,
    )


class Recurrent(nn.Module):
    """A language model of LSTMs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 256)
        self.cells = nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(256, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.cells(self.embed(tokens))[0]))


def recurrent(learning_rate: float) -> dt.Training:
    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        (tokens,) = batch
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return training(Recurrent(), TensorDataset(chain(2048, 64)), loss, learning_rate, rows=32)


workload = dt.workload(each_rate(gpt2, bert, vit, convolutional, recurrent), name="small")
