"""Input: where a training stands in its batches, and one reading of them for several. Later: definition, build, run and
tuning of input pipelines."""

from dovetail.feed.cursor import Cursor, digest
from dovetail.feed.shared import Tap, draw

__all__ = ["Cursor", "Tap", "digest", "draw"]
