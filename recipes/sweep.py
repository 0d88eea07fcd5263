"""A sweep as people run them: four architectures, three learning rates, two seeds each; what `make demo` trains.

    dovetail run recipes/sweep.py

Handwritten digits and breast tumours come with scikit-learn, text comes with Python, so nothing is downloaded. Every
program reports `accuracy` on data that it has not seen: of digits, of diagnoses, of the next character.
"""

import functools

import torch
from charlm import Batches, next_character_loss, windows_of
from digits import classifier, mlp
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from text import manual
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt

HELD_OUT_WINDOWS = 64


def cnn(channels=8, learning_rate=1e-3, seed=0) -> dt.Training:
    """Three convolutions with batch normalisation over the digits, the last at half the resolution."""
    shapes = [(1, channels), (channels, channels), (channels, 2 * channels)]
    first, second, third = (
        nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        for inputs, outputs in shapes
    )
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, 10))
    return classifier(nn.Sequential(first, second, nn.MaxPool2d(2), third, *head), learning_rate=learning_rate)


class Residual(nn.Module):
    """A block of a residual net for tables: normalise, widen, drop, narrow, add."""

    def __init__(self, width: int, *, dropout: float):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.body(rows)


def resnet(width=64, depth=2, batch=32, learning_rate=1e-3, dropout=0.1, seed=0) -> dt.Training:
    """A residual net over the 30 measurements of a tumour."""
    train, (rows, labels) = _tumours()
    blocks = (Residual(width, dropout=dropout) for _ in range(depth))
    model = nn.Sequential(nn.Linear(30, width), *blocks, nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
    return dt.Training(
        model=model,
        batches=DataLoader(train, batch_size=batch, shuffle=True, drop_last=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
        evaluate=lambda model: _scores(model, rows, labels),
    )


class CharacterLSTM(nn.Module):
    """An embedding, a long short-term memory and a head, with dropout between."""

    def __init__(self, tokens: int, *, width: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.memory(self.embedding(tokens))[0]))


def lstm(width=64, context=32, batch=16, learning_rate=1e-3, dropout=0.1, seed=0) -> dt.Training:
    """The next character of Python's manual."""
    train, held_out = manual()
    characters = {character: token for token, character in enumerate(sorted(set(train + held_out)))}
    model = CharacterLSTM(len(characters), width=width, dropout=dropout)
    windows = windows_of(held_out, characters, context)[:HELD_OUT_WINDOWS]
    return dt.Training(
        model=model,
        batches=Batches(windows_of(train, characters, context), batch=batch, seed=seed),
        loss=next_character_loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
        evaluate=lambda model: _scores(model, windows[:, :-1], windows[:, 1:]),
        evaluate_every=100,
        clip_norm=1.0,
    )


def _scores(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    device = next(model.parameters()).device
    logits, labels = model(inputs.to(device)).flatten(0, -2), labels.to(device).flatten()
    return {
        "accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
        "held_out_loss": F.cross_entropy(logits, labels).item(),
    }


@functools.cache
def _tumours() -> tuple[TensorDataset, tuple[torch.Tensor, torch.Tensor]]:
    """455 rows to train on and 114 held out, by the means and deviations of those to train on; one split for all."""
    found = load_breast_cancer()
    train, test = train_test_split(range(len(found.target)), test_size=0.2, random_state=0, stratify=found.target)
    rows, labels = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    rows = (rows - rows[train].mean(0)) / rows[train].std(0)
    return TensorDataset(rows[train], labels[train]), (rows[test], labels[test])


workload = dt.join(
    dt.grid(mlp, width=128, learning_rate=[3e-4, 1e-3, 3e-3], seed=[0, 1], epochs=64),
    dt.grid(cnn, learning_rate=[1e-3, 3e-3, 1e-2], seed=[0, 1], epochs=19),
    dt.grid(resnet, learning_rate=[3e-4, 1e-3, 3e-3], seed=[0, 1], epochs=72),
    dt.grid(lstm, learning_rate=[1e-3, 3e-3, 1e-2], seed=[0, 1], steps=320),
    name="sweep",
)
