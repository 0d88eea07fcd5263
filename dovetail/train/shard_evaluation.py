"""An evaluation over data that stays where it lies: sums where a shard is, and of all sums the metrics.

On one device the shards are read one after the other; a task that hops is evaluated on each where that lies, in
whichever order, and what was found there is put together here. Both add up the same numbers in the same order.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from dovetail.feeds.shards import Shards
from dovetail.train.randomness import KeyedRandomness
from dovetail.vocabulary import ProgramError

Sums = Mapping[str, tuple[float, float]]
"""By metric, what was summed over a shard, and over how many."""


@dataclasses.dataclass(frozen=True)
class ShardEvaluation:
    """An evaluation whose data lies on nodes: `Training(evaluate=dt.ShardEvaluation(shards, measure))`.

    `measure(model, batches)` gives for the batches of one shard, by metric, a sum and a count, such as correct answers
    and answers. The metric is the sum of all sums over that of all counts, added up in the order in which the shards
    are listed, wherever each was measured; what is drawn meanwhile is drawn anew for each shard, for the same reason.

    >>> import dovetail as dt
    >>> pieces = [dt.DataShard(name=name, path=__file__, batches=2) for name in ("left", "right")]
    >>> shards = dt.Shards(pieces, read=lambda place: [3, 5])
    >>> dt.ShardEvaluation(shards, lambda model, batches: {"mean": (sum(batches), 2)})(nn.Identity())
    {'mean': 4.0}
    """

    shards: Shards
    measure: Callable[[nn.Module, Iterable[Any]], Mapping[str, tuple[float, float]]]

    def __post_init__(self) -> None:
        if not isinstance(self.shards, Shards) or not callable(self.measure):
            raise ProgramError(
                f"a ShardEvaluation must have dt.Shards and a function measure(model, batches), got a "
                f"{type(self.shards).__name__} and a {type(self.measure).__name__}."
            )

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics, of shards that are all read here."""
        return self.combine({name: self.measure_shard(model, name) for name in self.shards.facts().names})

    def measure_shard(self, model: nn.Module, name: str) -> dict[str, tuple[float, float]]:
        """The sums and counts of one shard, which must be here."""
        KeyedRandomness.begin_part(name)
        found = self.measure(model, self.shards.batches_of(name, epoch=0))
        try:
            return {str(metric): (float(total), float(count)) for metric, (total, count) in found.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise ProgramError(
                f"measure must give a dict of a sum and a count by metric, such as {{'accuracy': (correct, count)}}; "
                f"on shard {name!r} it gave {found!r}."
            ) from error

    def combine(self, found: Mapping[str, Sums]) -> dict[str, float]:
        """The metrics, of what each shard came to."""
        totals: dict[str, tuple[float, float]] = {}
        for name in self.shards.facts().names:
            for metric, (total, count) in found[name].items():
                before = totals.get(metric, (0.0, 0.0))
                totals[metric] = before[0] + total, before[1] + count
        for metric, (_, count) in totals.items():
            if not count > 0:
                raise ProgramError(
                    f"measure must count more than 0 for metric {metric!r}, got {count:g} in all shards."
                )
        return {metric: total / count for metric, (total, count) in totals.items()}

    def here(self) -> "tuple[ShardEvaluation, float] | None":
        """The same over only those shards that can be read where this is called, and which part of all batches they
        have; None where there are none."""
        shards = self.shards.shards
        found = tuple(each for each in shards if each.url or os.path.exists(each.path))
        if not found:
            return None
        part = sum(each.batches for each in found) / sum(each.batches for each in shards)
        return ShardEvaluation(dataclasses.replace(self.shards, shards=found, chosen=()), self.measure), part


class EvaluationVisit:
    """An evaluation of which this process makes one `shard`'s part; the others' have been `found` elsewhere, or will
    be. Gives the metrics once all parts are there, and until then none."""

    def __init__(self, evaluation: ShardEvaluation, *, shard: str, found: Mapping[str, Sums]) -> None:
        self._evaluation, self.shard = evaluation, shard
        self.found: dict[str, Sums] = dict(found)

    @property
    def is_last(self) -> bool:
        """Whether all other parts are there."""
        return set(self._evaluation.shards.facts().names) <= {*self.found, self.shard}

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.found[self.shard] = self._evaluation.measure_shard(model, self.shard)
        return self._evaluation.combine(self.found) if self.is_last else {}
