"""Training with torch: what users build, what techniques promise, and one file for each technique."""

from dovetail.train.base import Session, SessionMember, StepReport, Technique, Training
from dovetail.train.interleave import INTERLEAVE
from dovetail.train.resident import RESIDENT
from dovetail.train.spill import SPILL
from dovetail.train.state import TrainingState

TECHNIQUES: dict[str, Technique] = {
    "interleave": INTERLEAVE,
    "resident": RESIDENT,
    "spill": SPILL,
}

__all__ = [
    "INTERLEAVE",
    "RESIDENT",
    "SPILL",
    "TECHNIQUES",
    "Session",
    "SessionMember",
    "StepReport",
    "Technique",
    "Training",
    "TrainingState",
]
