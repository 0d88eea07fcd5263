"""The programs of `bench/select_examples.py`: a logistic classifier on data that scikit-learn has or makes, with some
labels wrong where asked for. Nothing here is set for the choice of examples."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt


def _generated() -> tuple[Any, Any]:
    return make_classification(  # type: ignore[no-any-return]
        2000, n_features=20, n_informative=8, n_classes=4, n_clusters_per_class=2, flip_y=0.0, random_state=0
    )


SETS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "digits": lambda: load_digits(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "generated": _generated,
}


@dataclasses.dataclass(frozen=True)
class Split:
    """What is trained on, and what is tested on; of the first, some labels are wrong."""

    train: TensorDataset
    inputs: torch.Tensor
    labels: torch.Tensor


def split(name: str, *, wrong: float, seed: int) -> Split:
    """Three tenths are for testing; in the rest so many labels are replaced by others, drawn."""
    inputs, labels = SETS[name]()
    inputs, tested, labels, truth = train_test_split(inputs, labels, test_size=0.3, random_state=seed, stratify=labels)
    scale = StandardScaler().fit(inputs) if name != "digits" else None
    inputs, tested = (scale.transform(each) if scale else each / 16 for each in (inputs, tested))
    generator, classes = numpy.random.default_rng(seed), labels.max() + 1
    altered = generator.choice(len(labels), round(wrong * len(labels)), replace=False)
    labels[altered] = (labels[altered] + generator.integers(1, classes, len(altered))) % classes
    as_floats, as_labels = (lambda x: torch.as_tensor(x).float()), (lambda y: torch.as_tensor(y).long())
    return Split(TensorDataset(as_floats(inputs), as_labels(labels)), as_floats(tested), as_labels(truth))


def logistic(data: str = "digits", wrong: float = 0.0, seed: int = 0) -> dt.Training:
    """The program: softmax regression."""
    found = split(data, wrong=wrong, seed=seed)
    model = nn.Linear(found.inputs.shape[1], int(found.labels.max()) + 1)
    return dt.Training(
        model=model,
        batches=DataLoader(found.train, batch_size=32, shuffle=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        evaluate=lambda model: {"accuracy": (model(found.inputs).argmax(1) == found.labels).float().mean().item()},
    )
