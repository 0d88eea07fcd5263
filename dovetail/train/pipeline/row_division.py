"""Batches divided into microbatches by their rows, as the mathematics of the whole batch allows.

A part's dropout is that of its rows in the whole batch. The loss must be a mean over rows; that is looked at with the
first batch, while the model is still whole.
"""

from collections.abc import Callable
from typing import Any

import torch

from dovetail.train.base import SessionMember, Training
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.rows import Rows, RowwiseDropout, Seen, compare, count_rows, cut_in_two, take_rows
from dovetail.train.rowwise_session import refuse_rows
from dovetail.train.weights import Buffers, WeightWrites
from dovetail.vocabulary import TechniqueRefused


class RowDivision:
    """Every batch in `parts` of as many rows. With one part, a batch is its own microbatch and nothing is changed."""

    def __init__(self, member: SessionMember, parts: int, *, generator: torch.Generator) -> None:
        self._parts = parts
        if parts > 1 and (reason := refuse_rows([member], name="a pipeline that divides batches")):
            raise TechniqueRefused(reason)
        self._dropout = RowwiseDropout(member.training.model, generator=generator) if parts > 1 else None

    def divide(self, batch: Any) -> list[tuple[Any, Rows]]:
        """The parts of a batch, with the rows that they are."""
        if self._parts == 1:
            return [(batch, Rows(0, 1, 1, 1.0))]
        total = count_rows(batch)
        if total % self._parts:
            raise TechniqueRefused(
                f"microbatches must divide the batch: one of {total} rows cannot be divided into {self._parts}. Use a "
                f"batch of a multiple of {self._parts} rows, dropping a smaller last one, or other microbatches."
            )
        each = total // self._parts
        rows = [Rows(start, start + each, total, 1 / self._parts) for start in range(0, total, each)]
        return [(take_rows(batch, part), part) for part in rows]

    def enter(self, rows: Rows) -> None:
        """From here on dropouts fall as for these rows."""
        if self._dropout is not None:
            self._dropout.rows = rows

    def examine(self, training: Training, batch: Any, *, random: KeyedRandomness, computing: Callable[[], Any]) -> None:
        """Refuse a loss that is no mean over rows, that draws by itself, or that changes buffers or weights. The model
        must be whole."""
        total = count_rows(batch) if self._parts > 1 else 0
        if total < 2:
            return

        def look(rows: Rows) -> Seen:
            random.begin(0, 0)
            self.enter(rows)
            assert training.loss is not None
            with torch.no_grad(), computing():
                found = training.loss(training.model, take_rows(batch, rows))
            return float(found[0] if isinstance(found, tuple) else found), {}

        buffers, weights = Buffers(training.model.modules()), WeightWrites(training.model)
        before = random.state()
        with random.watching():
            whole = look(Rows(0, total, total, 1.0))
            drew = random.state() != before or random.drew()
        if drew:
            raise TechniqueRefused(
                "nothing but dropout modules may draw random numbers in a loss whose batches are divided into "
                "microbatches; this one's does, and would draw otherwise for each. Use accumulate, or nn.Dropout."
            )
        if changed := [*buffers.changed_names(), *weights.changed_names()]:
            raise TechniqueRefused(
                f"forward must change neither buffers nor weights where batches are divided into microbatches; "
                f"{changed[0]!r} would change once for each. Use accumulate, with smaller batches."
            )
        parts = [(look(rows), rows.share) for rows in cut_in_two(total)]
        found = compare(whole, parts, precision=training.precision)
        if not found.is_mean:
            raise TechniqueRefused(
                f"the loss of a batch must be the mean over its rows to be divided into microbatches; that of {total} "
                f"rows is {found.loss:.6g}, and the mean of its parts {found.mean:.6g}. Use accumulate, with smaller "
                f"batches."
            )

    def close(self) -> None:
        """Leave the model's dropouts as they were. May be called twice."""
        if self._dropout is not None:
            self._dropout.close()
