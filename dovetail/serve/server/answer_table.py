"""Requests and their answers as a table that can be compared with another: inputs by where they lie among those of a
reference, the class, how sure the model was, and whether a cascade's first stage left it to others."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from dovetail.serve.server.schema import Schema

# Of so many numbers each is looked at by itself; of more, their mean and spread in a row.
_MOST_NUMBERS = 8
_PARTS = (0.25, 0.5, 0.75)
CLASS, SURENESS, ANSWER, ESCALATED, CONFIDENCE, RIGHT = (
    "class", "sureness", "answer", "escalated", "confidence", "right",
)  # fmt: skip

MISSING = "missing"


def input_numbers(schema: Schema, arrays: Sequence[numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """A few numbers for each row.

    >>> schema = Schema.of(numpy.zeros((1, 2), dtype="float32"))
    >>> input_numbers(schema, [numpy.array([[1.0, 2.0], [3.0, 4.0]])])
    {'inputs[0]': array([1., 3.]), 'inputs[1]': array([2., 4.])}
    """
    found: dict[str, numpy.ndarray] = {}
    for field, array in zip(schema.fields, arrays, strict=True):
        flat = numpy.asarray(array, dtype=float).reshape(len(array), -1)
        if None in field.shape:
            found[f"length of {field.name}"] = numpy.full(len(flat), float(flat.shape[1]))
        elif flat.shape[1] <= _MOST_NUMBERS:
            found |= {f"{field.name}[{place}]": flat[:, place] for place in range(flat.shape[1])}
        else:
            found |= {f"mean of {field.name}": flat.mean(axis=1), f"spread of {field.name}": flat.std(axis=1)}
    return found


def answer_columns(scores: numpy.ndarray, stages: numpy.ndarray | None) -> dict[str, numpy.ndarray]:
    """What was answered: of classes the likeliest and how sure that is; else the number itself, where it is one.

    >>> sorted(answer_columns(numpy.array([[0.0, 9.0]]), numpy.array([1])))
    ['class', 'confidence', 'escalated', 'sureness']
    """
    found: dict[str, numpy.ndarray] = {}
    if has_classes(scores):
        shifted = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        top = numpy.sort(shifted / shifted.sum(axis=1, keepdims=True), axis=1)
        found[CLASS] = scores.argmax(axis=1).astype(str)
        found[CONFIDENCE], found[SURENESS] = top[:, -1], top[:, -1] - top[:, -2]
    elif scores.size == len(scores):
        found[ANSWER] = scores.reshape(-1).astype(float)
    if stages is not None:
        found[ESCALATED] = (stages > 0).astype(float)
    return found


def has_classes(scores: numpy.ndarray) -> bool:
    """Whether there is a score for each of several classes.

    >>> has_classes(numpy.zeros((5, 2))), has_classes(numpy.zeros((5, 1)))
    (True, False)
    """
    return scores.ndim == 2 and scores.shape[1] > 1


@dataclasses.dataclass(frozen=True)
class InputParts:
    """Where the quarters of a reference's inputs end, by name."""

    ends: Mapping[str, numpy.ndarray]

    @classmethod
    def of(cls, numbers: Mapping[str, numpy.ndarray]) -> "InputParts":
        """Those of a reference.

        >>> parts = InputParts.of({"x": numpy.arange(8.0)})
        >>> parts.name({"x": numpy.array([-5.0, 3.0, 100.0])})["x"].tolist()
        ['up to 1.75', '1.75 to 3.5', 'above 5.25']
        """
        known = {name: values[~numpy.isnan(values)] for name, values in numbers.items()}
        return cls(
            {name: numpy.unique(numpy.quantile(each, _PARTS)) if len(each) else each for name, each in known.items()}
        )

    def name(self, numbers: Mapping[str, numpy.ndarray]) -> dict[str, Any]:
        """The quarter that each number lies in, in words; 'missing' where there is none."""
        found = {}
        for name, ends in self.ends.items():
            between = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(ends)]
            parts = [f"up to {ends[0]:.3g}", *between, f"above {ends[-1]:.3g}"] if len(ends) else ["there"]
            places = numpy.searchsorted(ends, numbers[name], side="left")
            found[name] = numpy.array([*parts, MISSING])[numpy.where(numpy.isnan(numbers[name]), len(parts), places)]
        return found
