"""The engine `ray`: placements on the nodes of a Ray cluster. Ray is imported here alone, and only when it is used."""

from dovetail.engines.ray.cluster_survey import leaving_nodes, survey
from dovetail.engines.ray.connection import connected
from dovetail.engines.ray.ray_engine import RayEngine

__all__ = ["RayEngine", "connected", "leaving_nodes", "survey"]
