"""The rows of a batch, and how they are taken in parts: one by each of several ranks, or one after another.

A batch's rows are the entries along the first dimension of its tensors. A part computes the loss of its own rows; how
dropout falls depends on the whole batch, so a dropout here draws for all rows and uses its own. Knows batches and
modules; knows nothing of processes.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.loop import describe, tensors_in
from dovetail.vocabulary import TechniqueRefused

# How far the loss of a batch may be from the mean of its parts' losses, by precision.
ROUNDING = {"fp32": 1e-4, "bf16": 2e-2, "bf16-pure": 5e-2}


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The rows from `start` to `stop` of a batch of `total`.

    `share` is what they count for in the mean over all rows. It is zero on a rank that finds no rows left in a small
    batch: such a rank computes the first row, for others wait for it in collective operations.

    >>> [Rows.of(rank, 2, total=5) for rank in range(2)], Rows.of(0, 2, total=1).share
    ([Rows(start=0, stop=2, total=5, share=0.4), Rows(start=2, stop=5, total=5, share=0.6)], 0.0)
    """

    start: int
    stop: int
    total: int
    share: float

    @staticmethod
    def of(rank: int, size: int, *, total: int) -> "Rows":
        """The part of one of `size` ranks; parts differ by at most one row."""
        start, stop = total * rank // size, total * (rank + 1) // size
        return Rows(start, stop, total, (stop - start) / total) if stop > start else Rows(0, 1, total, 0.0)

    @property
    def count(self) -> int:
        """How many rows these are."""
        return self.stop - self.start


def count_rows(batch: Any) -> int:
    """How many rows a batch has. Raises `TechniqueRefused` where its tensors do not agree on that.

    >>> count_rows({"x": torch.ones(4, 2), "y": torch.ones(4), "scale": 2.0})
    4
    """
    found = {len(tensor) for tensor in tensors_in(batch) if tensor.dim()}
    if len(found) == 1 and 0 not in found:
        return found.pop()
    raise TechniqueRefused(
        f"all tensors of a batch must have the same first dimension, its rows, to be taken in parts; "
        f"found {describe(batch)}. Train whole batches on one device, or put the rows first."
    )


def take_rows(batch: Any, rows: Rows) -> Any:
    """These rows of a batch. Containers keep their type; plain values, and tensors without dimensions, are everybody's.

    >>> take_rows((torch.arange(4), ["a", "b", "c", "d"], 2.0), Rows(1, 3, 4, 0.5))
    (tensor([1, 2]), ['b', 'c'], 2.0)
    """
    if rows.count == rows.total:
        return batch
    if isinstance(batch, torch.Tensor):
        return batch[rows.start : rows.stop] if batch.dim() else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: take_rows(value, rows) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, list | tuple):
        taken = [take_rows(value, rows) for value in batch]
        if len(batch) == rows.total and all(isinstance(value, _PLAIN) for value in batch):
            taken = taken[rows.start : rows.stop]  # one value a row: names, labels
        return type(batch)(*taken) if hasattr(batch, "_fields") else type(batch)(taken)
    if batch is None or isinstance(batch, _PLAIN):
        return batch
    raise TechniqueRefused(
        f"a batch must be tensors and plain values in lists, tuples and dicts to be taken in parts; "
        f"found a {type(batch).__name__}. Train whole batches on one device, or let batches give tensors."
    )


_PLAIN = (str, bytes, bool, int, float)


# Each multiplies what comes in by what it draws, so rows of the product are rows of the draw.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class RowwiseDropout:
    """Makes the dropouts of a model fall as they would on the whole batch, from when it is made until `close`.

    `rows` is what this process has of the batch at hand, and `generator` what dropout draws from. Afterwards the
    generator is as it was seeded, so that one can see whether anything else drew from it.
    """

    def __init__(self, model: nn.Module, *, generator: torch.Generator) -> None:
        self.rows = Rows(0, 1, 1, 1.0)
        self._generator = generator
        self._changed = [
            (m, type(m)) for m in model.modules() if isinstance(m, DROPOUTS) and type(m) in DROPOUTS and m.p > 0
        ]
        for module, own in self._changed:
            # The name and module of its own class: it still is one of torch's dropouts to whoever looks.
            names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "forward": self._forward(own)}
            module.__class__ = type(own.__name__, (own,), names)

    def close(self) -> None:
        """Leave the model as it was. May be called twice."""
        for module, own in self._changed:
            module.__class__ = own
        self._changed = []

    def _forward(self, own: Any) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
        def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
            if not module.training:
                return x
            found = x * self._draw_mask(own, module, x)
            self._generator.manual_seed(self._generator.initial_seed())
            return found

        return forward

    def _draw_mask(self, own: Any, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """What `x`, which is of this process's rows, is to be multiplied by."""
        rows = self.rows
        each, odd = divmod(len(x), rows.count)  # more than one for each row where rows were unfolded, as tokens are
        if odd:
            raise TechniqueRefused(
                f"what a dropout is given must have the rows of the batch first, for these to be taken in parts; "
                f"found {tuple(x.shape)} for {rows.count} rows. Train whole batches on one device."
            )
        with torch.no_grad():
            drawn: torch.Tensor = own.forward(module, _ones_like(x, count=rows.total * each))
        # A copy: backward keeps it, and a view would keep what was drawn for all the other rows, too.
        return drawn[rows.start * each : rows.stop * each].clone()


def _ones_like(x: torch.Tensor, *, count: int) -> torch.Tensor:
    """So many rows of ones that lie in memory as those of `x` do: dropout draws in the order of memory, and what a
    recurrent layer gives may lie there word by word. A single row, whose stride is another's, lies within that one."""
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda place: (-strides[place], -x.shape[place]))
    sizes = (count, *x.shape[1:])
    ones = x.new_ones([sizes[place] for place in order])
    return ones.permute([order.index(place) for place in range(x.dim())])


def cut_in_two(total: int) -> tuple[Rows, Rows]:
    """A batch cut in two unlike parts, to see whether its loss is the mean over its rows.

    >>> [rows.count for rows in cut_in_two(7)]
    [2, 5]
    """
    cut = max(1, total // 3)
    return Rows(0, cut, total, cut / total), Rows(cut, total, total, 1 - cut / total)


Seen = tuple[float, Mapping[str, float]]
"""A loss and its metrics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """The loss and the metrics of some rows beside those of their parts."""

    loss: float
    mean: float
    """Of the parts' losses."""
    is_mean: bool
    summed: frozenset[str]
    """The metrics that are sums over rows; the others are means."""
    neither: tuple[str, ...]
    """Those that are neither."""


def compare(whole: Seen, parts: Sequence[tuple[Seen, float]], *, precision: str) -> Compared:
    """What of a batch is a mean over its rows, or a sum; `parts` come with their shares of the rows.

    >>> found = compare((2.0, {"most": 3.0, "rows": 4.0}),
    ...                 [((1.0, {"most": 2.0, "rows": 2.0}), 0.5), ((3.0, {"most": 3.0, "rows": 2.0}), 0.5)],
    ...                 precision="fp32")
    >>> found.is_mean, sorted(found.summed), found.neither
    (True, ['rows'], ('most',))
    """
    (loss, metrics), shares = whole, [share for _, share in parts]

    def near(value: float, each: Sequence[float], weights: Sequence[float], rounding: float) -> bool:
        scale = sum(abs(part) * weight for part, weight in zip(each, weights, strict=True))
        # A value that is no number passes: whoever reads it has more to say of it.
        return not math.isfinite(value) or abs(value - sum(map(operator.mul, each, weights))) <= rounding * scale

    losses = [part for (part, _), _ in parts]
    summed, neither = set(), []
    for name, value in metrics.items():
        each = [seen.get(name, math.nan) for (_, seen), _ in parts]
        if abs(value - sum(each)) < abs(value - sum(map(operator.mul, each, shares))):
            summed.add(name)
        # In less precision a count of what is right may come out otherwise for each part.
        rounding = ROUNDING[precision] if precision == "fp32" else math.inf
        if not near(value, each, [1.0] * len(each) if name in summed else shares, rounding):
            neither.append(name)
    return Compared(
        loss=loss,
        mean=sum(map(operator.mul, losses, shares)),
        is_mean=near(loss, losses, shares, ROUNDING[precision]),
        summed=frozenset(summed),
        neither=tuple(neither),
    )
