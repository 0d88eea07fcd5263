"""Where placements run: local processes, a Ray cluster (`dovetail.engines.ray`), a simulation with a virtual clock."""

from dovetail.engines.base import Engine, MemberOrder, Order
from dovetail.engines.detection import detect
from dovetail.engines.local import LocalEngine
from dovetail.engines.simulated import Outage, SimulatedEngine, World
from dovetail.engines.spares import Spares

__all__ = ["Engine", "LocalEngine", "MemberOrder", "Order", "Outage", "SimulatedEngine", "Spares", "World", "detect"]
