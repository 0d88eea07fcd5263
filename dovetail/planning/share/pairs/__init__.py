"""Pairs that were never measured together: predicted from those that were, with an error and the trials that help most.

Imports NumPy, so it is not imported with `dovetail.planning`.
"""

from dovetail.planning.share.pairs.completion import Completion, complete

__all__ = ["Completion", "complete"]
