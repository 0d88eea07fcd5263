"""Streams: scores, frequent combinations and windows of time, in bounded memory. `Monitor` holds them together."""

from dovetail.watch.streams.monitor import Monitor

__all__ = ["Monitor"]
