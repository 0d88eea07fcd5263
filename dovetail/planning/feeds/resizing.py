"""Whether a running feed is worth resizing. Knows rates; knows nothing of how a feed is resized."""

from dovetail.vocabulary.feeds import FeedPlan

# Rates of a second or two differ by this much from one to the next; who follows them resizes for ever.
MARGIN = 0.05


def worth_resizing(
    current: FeedPlan,
    proposed: FeedPlan,
    *,
    measured_per_second: float,
    horizon_seconds: float,
    switch_seconds: float,
) -> bool:
    """Whether a feed that gives `measured_per_second` now should be resized from one plan to another.

    Both plans carry what the model predicts of them from the same profiles. How far `current` falls short of that is
    believed of `proposed` as well. In the next `horizon_seconds` the items won must be more than those that are missed
    while workers start, for `switch_seconds`, and the gain must be larger than what rates vary by.

    >>> now, then = FeedPlan(stages=(), items_per_second=100), FeedPlan(stages=(), items_per_second=150)
    >>> worth_resizing(now, then, measured_per_second=90, horizon_seconds=60, switch_seconds=2)
    True
    >>> worth_resizing(now, then, measured_per_second=90, horizon_seconds=3, switch_seconds=2)
    False
    """
    if not current.items_per_second:
        return proposed.items_per_second > 0
    # A feed that gives more than predicted is no reason to expect more than predicted of another.
    share = min(1.0, measured_per_second / current.items_per_second)
    expected = max(share * proposed.items_per_second, min(measured_per_second, proposed.items_per_second))
    if expected < (1 + MARGIN) * measured_per_second:
        return False
    return expected * max(0.0, horizon_seconds - switch_seconds) > measured_per_second * horizon_seconds
