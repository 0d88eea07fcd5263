"""Input: where a training stands in its batches. Later: definition, build, run and tuning of input pipelines."""

from dovetail.feed.cursor import Cursor, digest

__all__ = ["Cursor", "digest"]
