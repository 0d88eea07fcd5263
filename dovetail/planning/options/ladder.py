"""The way down for a resident task that ran out of memory: the same batch each time, with less held at once.

First the rows of each batch in more parts, one after another (other techniques call that accumulation); then the
activations computed again in backward instead of being kept. What comes below, sharding and spilling, are techniques of
their own, and planned as such once being resident is rejected.
"""

from collections.abc import Mapping
from typing import Any

# Batches are offered in at most so many parts. Each doubling that does not fit costs a start, and weights, gradients
# and optimizer state are as large in any number of parts.
MOST_MICROBATCHES = 64


def next_rung(
    knobs: Mapping[str, Any], *, exact: bool, refused: bool = False, smallest: bool = False
) -> dict[str, Any] | None:
    """The knobs to try after these ran out of memory, or were refused; None where there are none.

    Taking rows in parts rounds otherwise than whole batches do, so with `exact` it is left out; computing again what
    was not kept gives the same bits. `smallest`: a single row did not fit, and more parts cannot help.

    >>> next_rung({}, exact=False), next_rung({"microbatches": 2}, exact=False)
    ({'microbatches': 2}, {'microbatches': 4})
    >>> next_rung({"microbatches": 4}, exact=False, smallest=True)
    {'microbatches': 4, 'recompute': True}
    >>> next_rung({"microbatches": 2}, exact=False, refused=True), next_rung({}, exact=True)
    ({'recompute': True}, {'recompute': True})
    """
    if knobs.get("recompute"):
        return None
    parts = knobs.get("microbatches", 1)
    if refused:  # batches that cannot be taken in parts are taken whole
        return {"recompute": True} if parts > 1 else None
    if not (exact or smallest) and 2 * parts <= MOST_MICROBATCHES:
        return {"microbatches": 2 * parts}
    return {"microbatches": parts, "recompute": True} if parts > 1 else {"recompute": True}


def in_words(knobs: Mapping[str, Any]) -> str:
    """How batches are taken on a rung.

    >>> in_words({"microbatches": 4, "recompute": True})
    'each batch, as large as before, in 4 parts, activations computed again in backward'
    >>> in_words({"recompute": True})
    'each batch, as large as before, activations computed again in backward'
    """
    words = ["each batch, as large as before"]
    if (parts := knobs.get("microbatches", 1)) > 1:
        words[0] += f", in {parts} parts"
    if knobs.get("recompute"):
        words.append("activations computed again in backward")
    return ", ".join(words)
