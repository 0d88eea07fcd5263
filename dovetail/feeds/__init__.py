"""Input pipelines: their definition, reading them plainly or with workers, where a training stands in its batches, and
one reading of them for several trainings."""

from dovetail.feeds.cursor import Cursor, digest
from dovetail.feeds.definition import Feed, feed
from dovetail.feeds.loader_feed import RunningLoader, why_left_alone
from dovetail.feeds.running import FeedStats, RunningFeed, StageStats
from dovetail.feeds.shared import Tap, draw

__all__ = [
    "Cursor",
    "Feed",
    "FeedStats",
    "RunningFeed",
    "RunningLoader",
    "StageStats",
    "Tap",
    "digest",
    "draw",
    "feed",
    "why_left_alone",
]
