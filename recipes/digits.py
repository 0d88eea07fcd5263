"""Handwritten digits: twelve small classifiers of unlike sizes, the first thing to run.

    dovetail run recipes/digits.py

The data are the 1,797 images of 8×8 pixels that come with scikit-learn, so nothing is downloaded.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt

BATCH = 64


def mlp(width=64, depth=2, learning_rate=1e-3, dropout=0.1, seed=0) -> dt.Training:
    """A multilayer perceptron over the 64 pixels."""
    layers, features = [nn.Flatten()], 64
    for _ in range(depth):
        layers += [nn.Linear(features, width), nn.ReLU(), nn.Dropout(dropout)]
        features = width
    return classifier(nn.Sequential(*layers, nn.Linear(features, 10)), learning_rate=learning_rate)


def cnn(channels=16, learning_rate=1e-3, seed=0) -> dt.Training:
    """Two blocks of two convolutions; the second block sees half the resolution with twice the channels."""
    model = nn.Sequential(
        *_convolutions(1, channels), nn.MaxPool2d(2), *_convolutions(channels, 2 * channels), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * channels * 4, 10),
    )  # fmt: skip
    return classifier(model, learning_rate=learning_rate)


def _convolutions(inputs: int, outputs: int) -> list[nn.Module]:
    convolutions = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)]
    return [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]


def classifier(model: nn.Module, *, learning_rate: float) -> dt.Training:
    train, (test_images, test_labels) = _data()
    return dt.Training(
        model=model,
        # A shuffling DataLoader draws its order from torch's global generator, which Dovetail keys by the
        # task's seed and the epoch: nothing more is needed for an order that survives stops. Short last
        # batches are dropped, so every step takes equally long.
        batches=DataLoader(train, batch_size=BATCH, shuffle=True, drop_last=True),
        loss=_loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
        evaluate=lambda model: _evaluate(model, test_images, test_labels),
    )


def _loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def _evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    # Dovetail moves batches to the model's device; what is held out is the program's own to move.
    device = next(model.parameters()).device
    logits, labels = model(images.to(device)), labels.to(device)
    return {
        "accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
        "held_out_loss": F.cross_entropy(logits, labels).item(),
    }


def _data() -> tuple[TensorDataset, tuple[torch.Tensor, torch.Tensor]]:
    """1,437 images to train on and 360 held out: the same split whatever a task's seed, so tasks compare."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # 16 is the darkest pixel
    labels = torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=digits.target)
    return TensorDataset(images[train], labels[train]), (images[test], labels[test])


# Seconds a task in a plain PyTorch loop with its evaluations, one thread of an idle Neoverse N1, torch 2.13:
# mlp 1.9, 2.9 and 5.6 by width (660 steps), cnn 3.5, 6.0 and 11.3 by channels (264 steps); 62 for all twelve.
workload = dt.join(
    dt.grid(mlp, width=[64, 256, 512], learning_rate=[1e-3, 3e-3], epochs=30),
    dt.grid(cnn, channels=[8, 16, 32], learning_rate=[2e-3, 5e-3], epochs=12),
    name="digits",
)
