"""What a policy is told that cannot tell kinds apart, for comparison: what awareness is worth is the difference."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable

from dovetail.planning.problem import Problem
from dovetail.vocabulary import Allocation, Option

Policy = Callable[[Problem], Allocation]


def equal_rates(options: Iterable[Option]) -> list[tuple[Option, Option]]:
    """Each option that runs one task, as somebody who cannot tell kinds apart would describe it, and the option itself.

    >>> from dovetail.planning.share.policies import example
    >>> sorted({1 / lie.step_seconds[0] for lie, _ in equal_rates(example().options)})
    [1.5, 2.5]
    """
    alone = [option for option in options if len(option.families) == 1]
    per_device: dict[str, list[float]] = defaultdict(list)
    for option in alone:
        per_device[option.families[0]].append(1 / (option.step_seconds[0] * option.count))
    means = {name: sum(rates) / len(rates) for name, rates in per_device.items()}
    return [(_equal(option, means[option.families[0]]), option) for option in alone]


def _equal(option: Option, per_device: float) -> Option:
    return dataclasses.replace(option, step_seconds=(1 / (per_device * option.count),))
