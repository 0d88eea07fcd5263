"""Cascades: a cheap model answers what it is sure of, and the rest goes on, with a promise of how little is lost."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.serve.cascades.cascade_classifier import CascadeClassifier
    from dovetail.serve.cascades.model_cascade import ModelCascade

__all__ = ["CascadeClassifier", "ModelCascade"]


def __getattr__(name: str) -> Any:
    """Either when it is asked for: one needs scikit-learn, the other torch."""
    if name == "CascadeClassifier":
        from dovetail.serve.cascades.cascade_classifier import CascadeClassifier

        return CascadeClassifier
    if name == "ModelCascade":
        from dovetail.serve.cascades.model_cascade import ModelCascade

        return ModelCascade
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
