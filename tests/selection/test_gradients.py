"""The gradient of each example's loss at a model's output, against the formula and against examples one by one."""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dovetail.selection.gradients import GradientReader
from dovetail.train.base import Training
from dovetail.vocabulary import ProgramError

INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def read(model, loss, *, targets=LABELS, precision="fp32"):
    training = Training(
        model=model, batches=[], loss=loss, optimizer=torch.optim.SGD(model.parameters()), precision=precision
    )
    return GradientReader(training).read(range(12), lambda numbers: (INPUTS[numbers], targets[numbers]))


def entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))


def truth(model):
    model.eval()
    found = model(INPUTS)
    model.train()
    return found.softmax(dim=1) - F.one_hot(LABELS, 3), found.argmax(dim=1) == LABELS


@pytest.mark.parametrize(
    "loss",
    [
        entropy,
        lambda model, batch: (entropy(model, batch), {"lr": 1}),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum"),
        # Weighted means divide by the weights of whoever is in the batch: each example alone has weight 1.
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0, 0.2])),
    ],
    ids=["mean", "metrics", "sum", "weighted"],
)
def test_of_cross_entropy_it_is_the_distance_to_the_label(model, loss):
    found = read(model, loss)
    gradient, correct = truth(model)
    assert torch.allclose(found.norms, gradient.norm(dim=1), atol=1e-5)
    assert found.classes == 3
    assert torch.equal(found.correct, correct)


def test_soft_labels_are_labels(model):
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)  # noqa: E731
    found = read(model, loss)
    assert found.classes == 3
    assert torch.equal(found.correct, truth(model)[1])


def test_a_sigmoid_has_two_classes():
    model, targets = nn.Linear(4, 1), (torch.arange(12) % 2).float()
    found = read(
        model,
        lambda model, batch: F.binary_cross_entropy_with_logits(model(batch[0])[:, 0], batch[1]),
        targets=targets,
    )
    outputs = model(INPUTS)[:, 0]
    assert found.classes == 2
    assert torch.equal(found.correct, (outputs > 0) == (targets > 0))
    assert torch.allclose(found.norms, (outputs.sigmoid() - targets).abs(), atol=1e-5)


def test_any_other_loss_has_gradients_and_no_classes():
    model, targets = nn.Linear(4, 2), torch.randn(12, 2)
    found = read(model, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), targets=targets)
    assert found.classes == 0
    assert torch.allclose(found.norms, (model(INPUTS) - targets).norm(dim=1), atol=1e-5)
    assert found.loss == pytest.approx(F.mse_loss(model(INPUTS), targets).item(), rel=1e-5)


def test_outputs_with_a_name_and_a_loss_inside():
    class Hub(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, inputs, labels):
            logits = self.inner(inputs)
            return types.SimpleNamespace(loss=F.cross_entropy(logits, labels), logits=logits)

    model = Hub()
    found = read(model, lambda model, batch: model(*batch).loss)
    assert found.classes == 3
    assert torch.allclose(found.norms, (model.inner(INPUTS).softmax(1) - F.one_hot(LABELS, 3)).norm(dim=1), atol=1e-5)


def test_half_precision_is_close(model):
    found = read(model, entropy, precision="bf16")
    assert torch.allclose(found.norms, truth(model)[0].norm(dim=1), atol=0.05)


def test_reading_leaves_the_model_as_it_was(model):
    model[2].eval()  # a norm that the program has frozen
    before = {name: value.clone() for name, value in model.state_dict().items()}
    read(model, entropy)
    assert model.training
    assert not model[2].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


def contrast(model, batch):
    """As contrastive losses do: an example is told apart from the others of its batch."""
    outputs = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (contrast, "gives an example none when it is alone in a batch"),
        (lambda model, batch: model[0](batch[0]).mean(), "must call the model itself"),
        (lambda model, batch: model(batch[0]), "must give a scalar tensor"),
    ],
)
def test_losses_without_a_value_of_each_example_are_refused(model, loss, words):
    with pytest.raises(ProgramError, match=words):
        read(model, loss)
