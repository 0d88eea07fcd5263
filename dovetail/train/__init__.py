"""Training with torch: what users build, what techniques promise, and one file for each technique."""

import importlib

from dovetail.planning.techniques import spec_of
from dovetail.train.base import SessionMember, StepReport, Technique, Training, TrainingSession
from dovetail.train.beside import BESIDE
from dovetail.train.fuse import FUSE
from dovetail.train.graph import GRAPH
from dovetail.train.hop import HOP
from dovetail.train.interleave import INTERLEAVE
from dovetail.train.pipeline import PIPELINE
from dovetail.train.ranks import Ranks
from dovetail.train.replicate import REPLICATE
from dovetail.train.resident import RESIDENT
from dovetail.train.schedulers import Scheduler
from dovetail.train.shard import SHARD
from dovetail.train.shard_evaluation import ShardEvaluation
from dovetail.train.spill import SPILL
from dovetail.train.state import TrainingState
from dovetail.train.together import TOGETHER
from dovetail.vocabulary import DovetailError


def load_technique(name: str) -> Technique:
    """What runs a technique, from where its descriptor (`planning/techniques`) says.

    >>> load_technique("resident") is RESIDENT
    True
    """
    spec = spec_of(name)
    module, _, attribute = spec.runtime.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, Technique) or (found.name, found.ranked) != (name, spec.ranked):
        raise DovetailError(
            f"the runtime of technique {name!r} must be a Technique of that name, ranked as its descriptor says "
            f"({spec.ranked}); {spec.runtime!r} is not."
        )
    return found


__all__ = [
    "BESIDE",
    "FUSE",
    "GRAPH",
    "HOP",
    "INTERLEAVE",
    "PIPELINE",
    "REPLICATE",
    "RESIDENT",
    "SHARD",
    "SPILL",
    "TOGETHER",
    "Ranks",
    "Scheduler",
    "SessionMember",
    "ShardEvaluation",
    "StepReport",
    "Technique",
    "Training",
    "TrainingSession",
    "TrainingState",
    "load_technique",
]
