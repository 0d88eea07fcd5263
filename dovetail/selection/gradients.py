"""How hard each example of a batch is for a model: the norm of the gradient of its loss at the model's output.

The output is whatever `Training.loss` gets when it calls the model. For softmax and cross entropy the gradient is
p - y, so that the label follows from it, y = p - gradient, and nobody has to know how a batch is laid out. Knows
trainings; knows nothing of which examples are chosen.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.base import Training
from dovetail.train.loop import AUTOCAST, tensors_in, to_device
from dovetail.vocabulary import ProgramError

# Of a first batch so many examples are looked at one by one.
_CHECKED = 3
# Gradients in bf16 have three digits.
_CLOSE = 2e-2
# How a batch's loss comes of its examples' losses.
_MEAN, _SUM, _OTHER = "mean", "sum", "other"

Read = Callable[[Sequence[int]], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExampleGradients:
    """Of each example the gradient's norm; the mean of their losses; and, of a classifier, how many classes there are,
    else 0, and whether each example's label is what the model says."""

    norms: torch.Tensor
    loss: float
    classes: int
    correct: torch.Tensor


class GradientReader:
    """Reads the gradients of examples at a model's output, batch by batch where a batch's loss is the mean or the sum
    of its examples' losses; else one by one, which any loss of an example allows.

    >>> model = nn.Linear(2, 3)
    >>> training = Training(model=model, batches=[], optimizer=torch.optim.SGD(model.parameters()),
    ...                     loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    >>> inputs, labels = torch.randn(8, 2), torch.arange(8) % 3
    >>> found = GradientReader(training).read(range(8), lambda numbers: (inputs[numbers], labels[numbers]))
    >>> truth = (model(inputs).softmax(dim=1) - nn.functional.one_hot(labels)).norm(dim=1)
    >>> found.classes, torch.allclose(found.norms, truth, atol=1e-5)
    (3, True)
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._reduction = ""

    def read(self, numbers: Sequence[int], read: Read) -> ExampleGradients:
        """What there is to know of the examples of these numbers; `read` gives the batch of some of them."""
        with _evaluating(self._training.model):
            self._reduction = self._reduction or self._find_reduction(numbers, read)
            if self._reduction != _OTHER:
                return self._batch(numbers, read, share=1 if self._reduction == _SUM else len(numbers))
            each = [self._batch([number], read) for number in numbers]
        return ExampleGradients(
            norms=torch.cat([one.norms for one in each]),
            loss=sum(one.loss for one in each) / len(each),
            classes=min(one.classes for one in each),
            correct=torch.cat([one.correct for one in each]),
        )

    def _find_reduction(self, numbers: Sequence[int], read: Read) -> str:
        """How a batch's loss comes of its examples': the hardest ones' gradients among others are compared with those
        of the same examples alone. The easy ones' may be zero either way."""
        together = self._batch(numbers, read, share=len(numbers)).norms
        places = together.argsort(descending=True)[:_CHECKED]
        alone = torch.cat([self._batch([numbers[int(place)]], read).norms for place in places])
        if bool(together.any()) and not bool(alone.any()):
            raise ProgramError(
                "examples are scored by their own losses; Training.loss gives an example none when it is alone in a "
                "batch, as losses do that compare the examples of a batch with each other. Choose with a program whose "
                "loss is a mean over examples, such as a classifier on the same data."
            )
        for reduction, share in ((_MEAN, 1.0), (_SUM, 1 / len(numbers))):
            if torch.allclose(share * together[places], alone, rtol=_CLOSE):
                return reduction
        return _OTHER

    def _batch(self, numbers: Sequence[int], read: Read, *, share: float = 1.0) -> ExampleGradients:
        """All at once. `share` is by how much an example's gradient is larger than that of its part in the loss."""
        training, count = self._training, len(numbers)
        device = next(training.model.parameters()).device
        dtype = AUTOCAST.get(training.precision)
        outputs: list[torch.Tensor] = []
        hook = training.model.register_forward_hook(lambda model, given, output: outputs.extend(_rows(output, count)))
        try:
            with torch.enable_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                assert training.loss is not None
                found = training.loss(training.model, to_device(read(numbers), device))
        finally:
            hook.remove()
        loss = found[0] if isinstance(found, tuple) else found
        rows = share * torch.cat([each.float().reshape(count, -1) for each in _gradients(loss, outputs)], dim=1)
        labels, guesses, classes = _labels(outputs[0].detach().float(), rows) if len(outputs) == 1 else _NO_LABELS
        return ExampleGradients(
            norms=rows.norm(dim=1).cpu(),
            loss=float(loss.detach()) * share / count,
            classes=classes,
            correct=(labels == guesses).cpu() if classes else torch.zeros(count, dtype=torch.bool),
        )


_NO_LABELS = (torch.empty(0), torch.empty(0), 0)


def _rows(output: Any, count: int) -> list[torch.Tensor]:
    """The part of a model's output that has a row for each example: of outputs with a name, as those of transformers,
    the logits."""
    found = getattr(output, "logits", None)
    tensors = [found] if found is not None else list(tensors_in(output))
    return [each for each in tensors if each.is_floating_point() and each.dim() and len(each) == count][:1]


def _gradients(loss: Any, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    if not isinstance(loss, torch.Tensor) or loss.dim():
        raise ProgramError("examples are scored by gradients of Training.loss; it must give a scalar tensor.")
    if not outputs:
        raise ProgramError(
            "examples are scored by the gradient of their loss at the model's output; Training.loss must call the "
            "model itself, model(...), and get a tensor with a row for each example. It does not: give the model a "
            "forward that computes what the loss needs."
        )
    if not loss.requires_grad:
        return [torch.zeros_like(each) for each in outputs]
    found = torch.autograd.grad(loss, outputs, allow_unused=True)
    return [torch.zeros_like(out) if each is None else each for each, out in zip(found, outputs, strict=True)]


def _labels(output: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Labels, guesses and the number of classes, where the loss is the cross entropy of a softmax, or of a sigmoid of
    one output: there label = probability - gradient. Else no classes."""
    if output.dim() > 2:
        return _NO_LABELS
    flat = output.reshape(len(output), -1)
    if flat.shape[1] == 1:
        label = (flat.sigmoid() - gradient)[:, 0]
        is_label = bool(torch.minimum(label.abs(), (label - 1).abs()).max() < _CLOSE)
        return (label > 0.5, flat[:, 0] > 0, 2) if is_label else _NO_LABELS
    labels = flat.softmax(dim=1) - gradient
    is_distribution = bool((labels > -_CLOSE).all()) and bool(((labels.sum(dim=1) - 1).abs() < _CLOSE).all())
    return (labels.argmax(dim=1), flat.argmax(dim=1), flat.shape[1]) if is_distribution else _NO_LABELS


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode within; parts that the program put there stay there."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
