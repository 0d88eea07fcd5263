"""Trainings made from what people have written for other frameworks, whose packages are imported when they are used."""

from dovetail.adapters.hf_trainer import from_trainer
from dovetail.adapters.lightning import from_lightning

__all__ = ["from_lightning", "from_trainer"]
