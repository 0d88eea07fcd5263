"""Fused arrays and tables: what NumPy and tables are asked to do becomes a few native loops, and functions are placed
where they are fastest.

`import dovetail.frame as df`. Loads neither torch nor a table library until one is given.
"""

from dovetail.frame.device_offload import OffloadedFunction, offload, rows
from dovetail.frame.fused import FusedFunction, fuse
from dovetail.frame.grouped_table import GroupedTable
from dovetail.frame.lazy_table import LazyColumn, LazyTable, table

__all__ = [
    "FusedFunction",
    "GroupedTable",
    "LazyColumn",
    "LazyTable",
    "OffloadedFunction",
    "fuse",
    "offload",
    "rows",
    "table",
]
