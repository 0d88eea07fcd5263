"""How little a cascade loses, as a promise that holds with a stated confidence.

A cascade does harm where one of its stages is wrong and the last model would have been right. Of rows that were used
for nothing else, the harmed ones are counted for one setting after another, the most careful first, and the promise of
each is tested exactly (binomial); the last setting before the first that fails keeps it. Tested in an order that was
fixed before, none of the tests needs a correction (Learn then Test). Knows counts, and nothing of models.
"""

import math
from collections.abc import Sequence

from dovetail.vocabulary import DovetailError


def check_promise(lose: float, confidence: float) -> None:
    """Refuse a promise that cannot be: all or nothing lost, surely or never."""
    if not (0 < lose < 1 and 0 < confidence < 1):
        raise DovetailError(f"lose and confidence must lie between 0 and 1; got {lose:g} and {confidence:g}.")


def least_rows(lose: float, confidence: float) -> int:
    """How many rows it takes to promise anything: with none of them harmed.

    >>> least_rows(0.001, 0.95)
    2995
    """
    return math.ceil(math.log(1 - confidence) / math.log(1 - lose))


def chance_of_so_few(harmed: int, rows: int, lose: float) -> float:
    """How likely so few rows, or fewer, are harmed where the share `lose` is: small, where less is lost for sure.

    >>> round(chance_of_so_few(0, 2995, 0.001), 4), round(chance_of_so_few(3, 10_000, 0.001), 4)
    (0.05, 0.0103)
    """
    logs = [
        math.lgamma(rows + 1)
        - math.lgamma(count + 1)
        - math.lgamma(rows - count + 1)
        + count * math.log(lose)
        + (rows - count) * math.log1p(-lose)
        for count in range(min(harmed, rows) + 1)
    ]
    top = max(logs)
    return min(1.0, math.exp(top) * sum(math.exp(each - top) for each in logs))


def boldest_kept(harmed: Sequence[int], rows: int, *, lose: float, confidence: float) -> int | None:
    """The number of the last setting that keeps the promise, of those that were listed from the most careful to the
    boldest with the rows that each harms; None where not even the first does.

    >>> boldest_kept([0, 2, 3, 40, 3], 10_000, lose=0.001, confidence=0.95)
    2
    """
    kept = None
    for number, count in enumerate(harmed):
        if chance_of_so_few(count, rows, lose) > 1 - confidence:
            break
        kept = number
    return kept
