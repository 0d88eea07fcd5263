"""Answers of a convolutional network for pictures that differ from a known one in a box: only what the box reaches is
computed again (Krypton, SIGMOD 2019)."""

from dovetail.serve.incremental.incremental_model import IncrementalModel, incremental
from dovetail.serve.incremental.occlusion_map import OcclusionMap, occlusion

__all__ = ["IncrementalModel", "OcclusionMap", "incremental", "occlusion"]
