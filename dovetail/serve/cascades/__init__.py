"""Cascades: a cheap model answers what it is sure of, and the rest goes on, with a promise of how little is lost."""

from dovetail.serve.cascades.cascade_classifier import CascadeClassifier

__all__ = ["CascadeClassifier"]
