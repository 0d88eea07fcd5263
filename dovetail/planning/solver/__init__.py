"""The only door to a solver: `covering` and `linear` programs, and `packing` in time, on OR-tools.

Knows rows, activities and whole ticks; does not know tasks, options or devices. An answer is an optimum, or states how
far from one it may be, or is none: nothing that stopped early passes for more. `linear` imports NumPy, so it is not
imported here.
"""

from dovetail.planning.solver.covering import Column, Cover, cheapest, cover
from dovetail.planning.solver.door import NotSolved
from dovetail.planning.solver.packing import Activity, Goal, Packed, pack

__all__ = ["Activity", "Column", "Cover", "Goal", "NotSolved", "Packed", "cheapest", "cover", "pack"]
