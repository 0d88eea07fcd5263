"""Another twenty-five small models of five architectures, on which nothing was tuned; data as in `small`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from small import LENGTH, PRECISION, VOCABULARY, chain, each_rate, pictures, training
from torch import nn
from torch.utils.data import TensorDataset

import dovetail as dt


def llama(learning_rate: float) -> dt.Training:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        max_position_embeddings=LENGTH,
    )
    return training(
        LlamaForCausalLM(config),
        TensorDataset(chain(1024)),
        lambda model, batch: model(input_ids=batch[0], labels=batch[0]).loss,
        learning_rate,
        rows=16,
        precision=PRECISION,
        clip_norm=1.0,
    )


def distilled(learning_rate: float) -> dt.Training:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=VOCABULARY, dim=256, n_layers=4, n_heads=8, hidden_dim=1024, num_labels=2)
    tokens = chain(2048)
    return training(
        DistilBertForSequenceClassification(config),
        TensorDataset(tokens, (tokens[:, 0] < VOCABULARY // 2).long()),
        lambda model, batch: model(input_ids=batch[0], labels=batch[1]).loss,
        learning_rate,
        rows=32,
        precision=PRECISION,
    )


class Mixer(nn.Module):
    """Perceptrons over places and over channels in turn."""

    def __init__(self, width: int = 128, depth: int = 6, places: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.across = nn.ModuleList(self._perceptron(places) for _ in range(depth))
        self.within = nn.ModuleList(self._perceptron(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def _perceptron(self, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for number, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * number + 1](x))
        return self.head(x.mean(1))


def mixer(learning_rate: float) -> dt.Training:
    return training(Mixer(), pictures(), classify, learning_rate, rows=64)


def classify(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain_convolutions(learning_rate: float) -> dt.Training:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 10))
    data = pictures()
    found = training(model, data, classify, learning_rate, rows=64)
    found.optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    return found


class Gated(nn.Module):
    """A language model of gated units."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(VOCABULARY, 192), nn.GRU(192, 192, num_layers=1, batch_first=True)
        self.out = nn.Linear(192, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.embed(tokens))[0])


def gated(learning_rate: float) -> dt.Training:
    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        (tokens,) = batch
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return training(Gated(), TensorDataset(chain(2048, 48)), loss, learning_rate, rows=32)


workload = dt.workload(each_rate(llama, distilled, mixer, plain_convolutions, gated), name="small_other")
