"""Training with torch: what users build, what techniques promise, and one file for each technique."""

from dovetail.train.base import Session, SessionMember, StepReport, Technique, Training
from dovetail.train.fuse import FUSE
from dovetail.train.interleave import INTERLEAVE
from dovetail.train.pipeline import PIPELINE
from dovetail.train.ranks import Ranks
from dovetail.train.replicate import REPLICATE
from dovetail.train.resident import RESIDENT
from dovetail.train.shard import SHARD
from dovetail.train.spill import SPILL
from dovetail.train.state import TrainingState
from dovetail.train.together import TOGETHER

TECHNIQUES: dict[str, Technique] = {
    "fuse": FUSE,
    "interleave": INTERLEAVE,
    "pipeline": PIPELINE,
    "replicate": REPLICATE,
    "resident": RESIDENT,
    "shard": SHARD,
    "spill": SPILL,
    "together": TOGETHER,
}

__all__ = [
    "FUSE",
    "INTERLEAVE",
    "PIPELINE",
    "REPLICATE",
    "RESIDENT",
    "SHARD",
    "SPILL",
    "TECHNIQUES",
    "TOGETHER",
    "Ranks",
    "Session",
    "SessionMember",
    "StepReport",
    "Technique",
    "Training",
    "TrainingState",
]
