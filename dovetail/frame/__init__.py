"""Fused arrays and tables: what NumPy is asked to do becomes a few native loops, placed where they are fastest.

`import dovetail.frame as df`. Loads neither torch nor a table library until one is given.
"""

from dovetail.frame.fused import FusedFunction, fuse

__all__ = ["FusedFunction", "fuse"]
