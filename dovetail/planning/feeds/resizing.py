"""Whether a running feed is worth resizing, and whether it was. Knows rates; knows nothing of how a feed is resized."""

from dovetail.vocabulary.feeds import FeedPlan

# Rates of a second or two differ by this much from one to the next; who follows them resizes for ever.
MARGIN = 0.05
# After a resize that was taken back none is tried for so long, and for twice as long after the next; unless the feed
# gives less than this share of what it gave then, which is another feed, or another machine.
_HOLD_SECONDS, _CHANGED = 10.0, 0.8
# After a trial in vain none is made for so long, and for twice as long after the next; and none at all while the feed
# gives what it gave then, within a fifth.
_TRY_HOLD_SECONDS = 30.0
# A resize stays that brings this share of the gain that was expected of it.
_LEAST_SHARE = 0.4
# A consumer that was served at so many looks since a resize is another one, and not one that pauses.
_SERVED_LOOKS = 3


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
    expected = expected_rate(current, proposed, measured_per_second=measured_per_second)
    if expected < (1 + MARGIN) * measured_per_second:
        return False
    return expected * max(0.0, horizon_seconds - switch_seconds) > measured_per_second * horizon_seconds


def expected_rate(current: FeedPlan, proposed: FeedPlan, *, measured_per_second: float) -> float:
    """What a feed will give with another plan that gives so much now.

    >>> now, then = FeedPlan(stages=(), items_per_second=100), FeedPlan(stages=(), items_per_second=150)
    >>> expected_rate(now, then, measured_per_second=80)
    120.0
    """
    # A feed that gives more than predicted is no reason to expect more than predicted of another.
    share = min(1.0, measured_per_second / current.items_per_second) if current.items_per_second else 1.0
    return max(share * proposed.items_per_second, min(measured_per_second, proposed.items_per_second))


class ResizeJudge:
    """Whether resizes bring what they were expected to. A worker that waits for the lock, or for a core that somebody
    else has, looks like one that waits for a disk: more of them are planned, wait for longer, and look like a slower
    disk. 58 threads became 255 in this way beside four busy processes, and gave half as much.

    >>> few, many, judge = FeedPlan(stages=()), FeedPlan(stages=(), items_per_second=2), ResizeJudge()
    >>> judge.begin(few, rate=100.0, expected=200.0, from_seconds=5.0)
    >>> judge.judge(60.0, since_seconds=5.0, now_seconds=6.0) is few  # where to go back to
    True
    >>> [judge.may_resize(rate, now_seconds=now) for rate, now in ((100.0, 7.0), (100.0, 16.0), (70.0, 7.0))]
    [False, True, True]
    """

    def __init__(self) -> None:
        self._before: FeedPlan | None = None
        self._rate = self._enough = self._from_seconds = self._until_seconds = 0.0
        self._hold_seconds, self._served_looks = _HOLD_SECONDS, 0
        self._is_trial, self._tried_in_vain, self._begun_rate = False, 0.0, 0.0
        self._last_rate = self._better_rate = 0.0  # when a trial was last asked for, and the better of the last two
        self._try_from_seconds, self._try_hold_seconds = 0.0, _TRY_HOLD_SECONDS

    def begin(
        self, before: FeedPlan, *, rate: float, expected: float, from_seconds: float, is_trial: bool = False
    ) -> None:
        """A feed that gave this rate with the plan `before` is resized, which shows from then on; as a trial, after
        which, where it brings nothing, others may be resized at once."""
        self._before, self._from_seconds, self._is_trial = before, from_seconds, is_trial
        self._served_looks = 0
        self._begun_rate = max(rate, self._better_rate) if is_trial else rate  # not what a moment was slow by
        self._enough = self._begun_rate + _LEAST_SHARE * (expected - rate)
        if not is_trial:
            self._rate = rate

    def may_resize(self, rate: float, *, now_seconds: float) -> bool:
        """Whether the last resize was judged, and another may be tried."""
        return self._before is None and (now_seconds >= self._until_seconds or rate < _CHANGED * self._rate)

    def may_try(self, rate: float, *, now_seconds: float) -> bool:
        """Whether a trial may bring something: the rate is as it was when this was last asked, and none has been in
        vain of late, nor of the same feed on the same machine."""
        last, self._last_rate = self._last_rate, rate
        self._better_rate = max(last, rate)
        is_steady = abs(rate - last) <= 2 * MARGIN * last
        is_same = _CHANGED * self._tried_in_vain < rate < self._tried_in_vain / _CHANGED
        return is_steady and now_seconds >= self._try_from_seconds and not is_same

    def settle(self, rate: float, *, since_seconds: float) -> None:
        """The feed serves its consumer. Where it gives no less than before the last resize, that was enough; else its
        consumer takes less just now, which says nothing. One that goes on taking less is not held, when it waits again,
        against what the resize was to bring long ago."""
        if since_seconds < self._from_seconds:
            return
        self._served_looks += 1
        if rate >= self._begun_rate or self._served_looks >= _SERVED_LOOKS:
            self._before = None

    def judge(self, rate: float, *, since_seconds: float, now_seconds: float) -> FeedPlan | None:
        """The plan to go back to, where too little of what was expected came; None where enough did, or it is not known
        yet."""
        if self._before is None or since_seconds < self._from_seconds:
            return None
        before, self._before = self._before, None
        if self._is_trial:
            if rate >= self._enough:
                self._tried_in_vain = 0.0
                return None
            self._tried_in_vain = self._begun_rate
            self._try_from_seconds = now_seconds + self._try_hold_seconds
            self._try_hold_seconds *= 2
            return before
        if rate >= self._enough:
            self._hold_seconds = _HOLD_SECONDS
            return None
        self._until_seconds = now_seconds + self._hold_seconds
        self._hold_seconds *= 2
        return before
