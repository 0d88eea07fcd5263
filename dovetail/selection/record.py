"""What `dt.select` gives: which examples were chosen, how, and what was tried. Goes to JSON and back; no torch."""

import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.store import write_atomically
from dovetail.vocabulary import DovetailError, InvalidRecord, from_json, to_json

if TYPE_CHECKING:
    from torch.utils.data import Subset


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to choose: a method, and which part of the examples, the hardest, is left out before it chooses.

    >>> print(Candidate(method="maxgrad", strength=0.1))
    maxgrad without the hardest 10%
    """

    method: str
    strength: float = 0.0

    def __str__(self) -> str:
        screened = f" without the hardest {100 * self.strength:.3g}%" if self.strength else ""
        return f"{self.method}{screened}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelectionTrial:
    """A way to choose that was tried: its method, which part of the examples, the hardest, it left out first, and what
    a student of its choice came to on each validation split."""

    method: str
    strength: float
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean of the scores over the splits."""
        return statistics.fmean(self.scores)

    @property
    def error(self) -> float:
        """The standard error of that mean."""
        return statistics.stdev(self.scores) / math.sqrt(len(self.scores))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Examples of a training, chosen because they teach: their numbers in its dataset, and how often an epoch has each.

    `weights` are whole numbers: an example of weight 2 is there twice an epoch. So they reach any loss through the
    batches, and nothing of a program has to know them. They are 1 but with `ccs`, where an example stands for others of
    its stratum. `trials` are what was compared, by `metric` on validation splits; `method` and `strength` are what was
    chosen. `of` a dataset gives what to train on; `dt.feed(dataset).select(selection)` reads the same.

    >>> chosen = Selection(program="digits.py:digits", fraction=0.5, count=4, method="ccs", strength=0.1,
    ...                    indices=(0, 3), weights=(1, 2), metric="accuracy", trials=())
    >>> list(chosen.of(["a", "b", "c", "d"]))
    ['a', 'd', 'd']
    >>> print(chosen)
    2 of 4 examples, by ccs without the hardest 10%
    """

    program: str
    fraction: float
    count: int
    method: str
    strength: float
    indices: tuple[int, ...]
    weights: tuple[int, ...]
    metric: str
    trials: tuple[SelectionTrial, ...]

    def of(self, dataset: Any) -> "Subset[Any]":
        """The chosen examples of a dataset, as torch's `Subset`: for a `DataLoader`, or wherever a dataset goes."""
        from torch.utils.data import Subset

        if len(dataset) != self.count:
            raise DovetailError(
                f"a selection must be used with the dataset that it was made of, of {self.count:,} examples; this one "
                f"has {len(dataset):,}. Select again."
            )
        pairs = zip(self.indices, self.weights, strict=True)
        return Subset(dataset, [number for number, weight in pairs for _ in range(weight)])

    def save(self, path: str | Path) -> Path:
        """Write it to a file, as JSON; gives the path."""
        try:
            write_atomically(Path(path), (json.dumps(to_json(self)) + "\n").encode())
        except OSError as error:
            raise DovetailError(f"a selection must be written to {path}; found: {error}.") from error
        return Path(path)

    @classmethod
    def open(cls, path: str | Path) -> "Selection":
        """The selection that was written to a file, by `save` or by `dovetail select -o`."""
        try:
            return from_json(cls, json.loads(Path(path).read_bytes()))
        except (OSError, ValueError, InvalidRecord) as error:
            raise DovetailError(
                f"a selection must be read from {path}; found: {error}. Make one with dovetail select -o {path}."
            ) from error

    def __str__(self) -> str:
        chosen = Candidate(method=self.method, strength=self.strength)
        return f"{len(self.indices):,} of {self.count:,} examples, by {chosen}"
