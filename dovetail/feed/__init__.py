"""Input pipelines: their definition, reading them plainly or with workers, where a training stands in its batches, and
one reading of them for several trainings."""

from dovetail.feed.cursor import Cursor, digest
from dovetail.feed.definition import Feed, feed
from dovetail.feed.shared import Tap, draw

__all__ = ["Cursor", "Feed", "Tap", "digest", "draw", "feed"]
