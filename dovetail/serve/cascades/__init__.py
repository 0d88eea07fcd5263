"""Cascades: a cheap model answers what it is sure of, and the rest goes on, with a promise of how little is lost."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.serve.cascades.cascade_classifier import CascadeClassifier
    from dovetail.serve.cascades.cascade_regressor import CascadeRegressor
    from dovetail.serve.cascades.model_cascade import ModelCascade

__all__ = ["CascadeClassifier", "CascadeRegressor", "ModelCascade"]


_WHERE = {
    "CascadeClassifier": "cascade_classifier",
    "CascadeRegressor": "cascade_regressor",
    "ModelCascade": "model_cascade",
}


def __getattr__(name: str) -> Any:
    """Each when it is asked for: some need scikit-learn, one torch."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
