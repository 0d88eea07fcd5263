"""Which layers make up each stage of a pipeline, on which devices, how often replicated.

`partition` plans any graph on any fabric; `best_shape` chooses depth, width, microbatch and recomputation for a model
of repeated blocks, as PipeDream-2BW does; `appraise` says what a division made elsewhere takes.
"""

from dovetail.plan.partition.fabric import Fabric, Place
from dovetail.plan.partition.graph import Graph
from dovetail.plan.partition.planning import appraise, partition
from dovetail.plan.partition.result import Partition, Stage
from dovetail.plan.partition.shapes import Shape, best_shape
from dovetail.plan.partition.terms import Terms

__all__ = ["Fabric", "Graph", "Partition", "Place", "Shape", "Stage", "Terms", "appraise", "best_shape", "partition"]
