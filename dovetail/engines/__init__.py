"""Where placements run: local processes, a simulation with a virtual clock, later Ray."""

from dovetail.engines.base import Engine, MemberOrder, Order
from dovetail.engines.detect import detect
from dovetail.engines.local import LocalEngine
from dovetail.engines.simulated import SimulatedEngine, World

__all__ = ["Engine", "LocalEngine", "MemberOrder", "Order", "SimulatedEngine", "World", "detect"]
