"""Which layers make up each stage of a pipeline, on which devices, how often replicated.

`partition` plans any graph on any fabric; `appraise` says what a division made elsewhere takes.
"""

from dovetail.planning.pipeline.partition.fabric import Fabric, Place
from dovetail.planning.pipeline.partition.graph import Graph
from dovetail.planning.pipeline.partition.planning import appraise, partition
from dovetail.planning.pipeline.partition.terms import Partition, Stage, Terms

__all__ = ["Fabric", "Graph", "Partition", "Place", "Stage", "Terms", "appraise", "partition"]
