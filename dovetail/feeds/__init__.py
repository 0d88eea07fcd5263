"""Input pipelines: their definition, reading them plainly or with workers, where a training stands in its batches, and
one reading of them for several trainings."""

from dovetail.feeds.cursor import Cursor, digest
from dovetail.feeds.definition import Feed, feed
from dovetail.feeds.loader_feed import RunningLoader, explain_refusal
from dovetail.feeds.running import FeedStats, RunningFeed, StageStats
from dovetail.feeds.shards import ShardReader, Shards
from dovetail.feeds.shared import Tap, draw
from dovetail.feeds.shared_feed import FeedView, SharedFeed

__all__ = [
    "Cursor",
    "Feed",
    "FeedStats",
    "FeedView",
    "RunningFeed",
    "RunningLoader",
    "ShardReader",
    "Shards",
    "SharedFeed",
    "StageStats",
    "Tap",
    "digest",
    "draw",
    "explain_refusal",
    "feed",
]
