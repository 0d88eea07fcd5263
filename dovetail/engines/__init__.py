"""Where placements run: local processes, a Ray cluster (`dovetail.engines.ray`), a simulation with a virtual clock."""

from dovetail.engines.base import Engine, MemberOrder, Order
from dovetail.engines.detect import detect
from dovetail.engines.local import LocalEngine
from dovetail.engines.simulated import Outage, SimulatedEngine, World

__all__ = ["Engine", "LocalEngine", "MemberOrder", "Order", "Outage", "SimulatedEngine", "World", "detect"]
