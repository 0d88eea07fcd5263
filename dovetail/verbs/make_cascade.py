"""`dt.cascade`: the models of a sweep, one after another, with a promise of how little is lost."""

from typing import Any

import torch

from dovetail.control import Result
from dovetail.serve.cascades.labelled import gather
from dovetail.serve.cascades.model_cascade import ModelCascade, make_cascade
from dovetail.vocabulary import DovetailError


def cascade(
    result: Result,
    *,
    metric: str,
    calibrate: Any,
    lose: float = 0.001,
    confidence: float = 0.95,
    goal: str | None = None,
    batch_rows: int = 64,
    device: str | None = None,
) -> ModelCascade:
    """A cascade of a sweep's own models: small ones answer what they are sure of, the rest goes on, at last to the one
    whose `metric` is best. At most the share `lose` of rows are answered wrongly that this model would have answered
    rightly, with probability `confidence` over the rows to `calibrate` with: a pair of inputs and labels, or batches of
    such pairs, that no training has seen. Half of them choose models and thresholds, the others test the promise.
    `goal` is that of `Result.best`.

    Models are classifiers over the same classes, of whichever programs; what each takes is measured on `device` (an
    accelerator where there is one) for calls of `batch_rows` rows. Where no cascade pays, the best model alone comes
    back, and `why_plain` says why.

    >>> import torch
    >>> from dovetail import open_result
    >>> cascade(open_result("/nowhere"), metric="accuracy", calibrate=(torch.ones(9, 2), torch.ones(9)))
    Traceback (most recent call last):
    dovetail.vocabulary.errors.StoreError: there must be a store at /nowhere; found none...
    """
    best = result.best(metric, goal=goal)
    models = {task.name: task.model for task in result.tasks if task.status == "finished"}
    if best.name not in models:
        raise DovetailError(f"the best task must have finished to be served; {best.name} is {best.status}.")
    return make_cascade(
        models,
        best.name,
        gather(calibrate),
        lose=lose,
        confidence=confidence,
        batch_rows=batch_rows,
        device=torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")),
    )
