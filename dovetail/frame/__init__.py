"""Fused arrays and tables: what NumPy and tables are asked to do becomes a few native loops.

`import dovetail.frame as df`. Loads neither torch nor a table library until one is given.
"""

from dovetail.frame.fused import FusedFunction, fuse
from dovetail.frame.lazy_table import GroupedTable, LazyColumn, LazyTable, table

__all__ = ["FusedFunction", "GroupedTable", "LazyColumn", "LazyTable", "fuse", "table"]
