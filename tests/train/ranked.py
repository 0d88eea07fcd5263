"""Programs that are hard to split over ranks, for the tests of techniques that do. At the top of a module, because the
other ranks build them too."""

import os

import torch
from torch import nn
from torch.nn import functional

from dovetail.testing import programs
from dovetail.train import Training


def training(model, loss, *, rows=(8, 8, 8), **options):
    optimizer = options.pop("optimizer", torch.optim.AdamW)(model.parameters(), lr=1e-2)
    batches = options.pop("batches", [(torch.randn(count, 4), torch.randn(count, 1)) for count in rows])
    return Training(model=model, batches=batches, loss=loss, optimizer=optimizer, **options)


def small_batches():
    """Some batches have fewer rows than there are ranks, or an odd number of them."""
    return training(programs.perceptron(dropout=0.3), programs.squared, rows=(5, 1, 3), accumulate=3, clip_norm=0.1)


class Forked(nn.Module):
    """Rows go one way or the other by their sign, and one way is never taken."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(4, 1) for _ in range(3))

    def forward(self, x):
        ways = [(x[:, 0] < 0, self.left), (x[:, 0] >= 0, self.right)]
        found = torch.zeros(len(x), 1)
        for taken, way in ways:
            if taken.any():
                found = found.index_put((taken,), way(x[taken]))
        return found


def forked():
    """The two halves of a batch take different ways."""
    signs = torch.tensor([-1.0] * 4 + [1.0] * 4).unsqueeze(1)
    batches = [(torch.cat([signs, torch.randn(8, 3)], dim=1), torch.randn(8, 1)) for _ in range(3)]
    return training(Forked(), programs.squared, batches=batches)


def metrics():
    def loss(model, batch):
        rows = programs.squared(model, batch)
        return rows, {"seen": len(batch[0]), "mean": batch[1].mean()}

    return training(programs.perceptron(), loss, rows=(7, 7, 7))


def submodules_called():
    """A loss that never calls the model as a whole."""

    def loss(model, batch):
        x, y = batch
        for layer in model:
            x = layer(x)
        return functional.mse_loss(x, y)

    return training(programs.perceptron(dropout=0.2), loss)


def in_place():
    """Changes in place what a layer gives, which for three dimensions is a view."""
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1)
    )
    batches = [(torch.randn(8, 3, 4), torch.randn(8, 3, 1)) for _ in range(3)]
    return training(model, programs.squared, batches=batches)


def eager_optimizer():
    """Has its state before its first step."""
    return training(programs.perceptron(), programs.squared, optimizer=torch.optim.Adagrad)


def half():
    """bf16 throughout, but for the weights that the optimizer keeps."""
    return training(programs.perceptron(), programs.squared, precision="bf16-pure")


def unfolded():
    """Dropout over tokens, more than one a row."""

    def loss(model, batch):
        x, y = batch
        return functional.mse_loss(model(x.flatten(0, 1)), y.flatten(0, 1))

    batches = [(torch.randn(6, 3, 4), torch.randn(6, 3, 1)) for _ in range(3)]
    return training(programs.perceptron(dropout=0.4), loss, batches=batches)


def evaluated():
    """An evaluation that looks at weights by themselves."""
    built = training(programs.perceptron(), programs.squared)
    held_out = (torch.randn(8, 4), torch.randn(8, 1))
    built.evaluate = lambda model: {
        "norm": float(torch.stack([weight.detach().norm() for weight in model.parameters()]).norm()),
        "loss": float(programs.squared(model, held_out)),
    }
    return built


def penalised():
    """A loss that looks at weights by themselves."""

    def loss(model, batch):
        penalty = torch.stack([weight.square().mean() for weight in model.parameters()]).sum()
        return programs.squared(model, batch) + 0.1 * penalty

    return training(programs.perceptron(), loss)


# What is refused


def contrastive():
    return training(programs.perceptron(), lambda model, batch: model(batch[0]).logsumexp(0).mean())


def summed():
    return training(programs.perceptron(), lambda model, batch: model(batch[0]).square().sum())


def padded():
    """Means over tokens, of which rows have unlike numbers."""

    def loss(model, batch):
        x, words = batch
        return functional.cross_entropy(model(x).flatten(0, 1), words.flatten(), ignore_index=0)

    words = torch.arange(8).unsqueeze(1) > torch.arange(6)
    batches = [(torch.randn(8, 6, 4), words.long() * torch.randint(1, 8, (8, 6))) for _ in range(3)]
    return training(nn.Linear(4, 8), loss, batches=batches)


def drawing_in_the_loss():
    def loss(model, batch):
        x, y = batch
        return functional.mse_loss(model(functional.dropout(x, 0.5)), y)

    return training(programs.perceptron(), loss)


class Averaging(nn.Module):
    """Keeps a mean of what it has seen."""

    def __init__(self):
        super().__init__()
        self.inner = programs.perceptron()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.seen.lerp_(x.mean(0), 0.1)
        return self.inner(x)


def averaging():
    return training(Averaging(), programs.squared)


def ragged():
    batches = [(torch.randn(8, 4), torch.randn(7, 1)) for _ in range(3)]
    return training(programs.perceptron(), programs.squared, batches=batches)


def unlike_batches():
    torch.manual_seed(os.getpid())
    return training(programs.perceptron(), programs.squared)


def unlike_weights():
    torch.manual_seed(os.getpid())
    model = programs.perceptron()
    torch.manual_seed(0)
    return training(model, programs.squared)


class Reader(nn.Module):
    """A language model whose head may begin at zero, when all rows have one loss."""

    def __init__(self, *, blank):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        if blank:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)))


def wordy(*, blank=False, first=1):
    """Means over words, of which rows have unlike numbers from the `first` batch on."""

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100)

    batches = [(torch.randint(11, (8, 12)), torch.randint(11, (8, 12))) for _ in range(3)]
    for _, words in batches[first:]:
        for row in range(8):
            words[row, 12 - row :] = -100
    return training(Reader(blank=blank), loss, batches=batches)


def padded_later():
    return wordy(first=1)


def padded_unseen():
    """While its head is zero nothing shows."""
    return wordy(blank=True, first=0)


class Adapter(nn.Module):
    """A branch that begins at zero, with a dropout that is no module."""

    def __init__(self):
        super().__init__()
        self.base, self.branch = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        nn.init.zeros_(self.branch.weight)

    def forward(self, x):
        return self.base(x) + self.branch(functional.dropout(x, 0.5, self.training))


def drawing_before_a_dropout():
    return training(nn.Sequential(Adapter(), nn.Dropout(0.1), nn.Linear(4, 1)), programs.squared)


def worst():
    """A metric that is neither a mean nor a sum."""

    def loss(model, batch):
        return programs.squared(model, batch), {"worst": (model(batch[0]) - batch[1]).abs().max()}

    return training(programs.perceptron(), loss)


class Writing(nn.Linear):
    """Keeps an average of its own weight, as a parameter that forward writes."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.mean = nn.Parameter(self.weight.detach().clone(), requires_grad=False)

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(self.weight, 0.1)
        return functional.linear(x, self.weight + self.mean, self.bias)


def writing():
    return training(nn.Sequential(Writing(4, 4), nn.Tanh(), nn.Linear(4, 1)), programs.squared)


def hooked():
    made = training(programs.perceptron(), programs.squared)
    next(made.model.parameters()).register_hook(lambda gradient: gradient * 0.5)
    return made
