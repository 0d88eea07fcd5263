"""Engines whose workers are processes: the contract of a worker, and what such engines have in common."""

from dovetail.engines.workers.base import Worker, cores_of, threads_of
from dovetail.engines.workers.engine import WorkerEngine

__all__ = ["Worker", "WorkerEngine", "cores_of", "threads_of"]
