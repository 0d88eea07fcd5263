"""The engine `ray`: placements on the nodes of a Ray cluster. Ray is imported here alone, and only when it is used."""

from dovetail.engines.ray.connection import connected
from dovetail.engines.ray.engine import RayEngine
from dovetail.engines.ray.survey import survey

__all__ = ["RayEngine", "connected", "survey"]
