"""`dt.search`: a search, described and carried out."""

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.control import Result
from dovetail.describe import Search
from dovetail.verbs.run_workload import run


def search(
    program: str | Callable[..., Any],
    space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]],
    *,
    metric: str,
    goal: str | None = None,
    sampler: Any = None,
    pruner: Any = None,
    count: int = 100,
    at_once: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    patience: int | None = None,
    name: str = "",
    **how: Any,
) -> Result:
    """Search for the parameters with which a program does best: `count` tasks, each asked for as the results of others
    come, several at a time. Stop it and call it again to go on; no trial is asked for twice.

    The arguments are those of `dt.Search`, which describes a search without running it; `how` are those of `dt.run`:
    `store`, `settings`, `engine`, `objective`, `techniques`, `fresh` and so on. The result is that of a run, and
    `result.study()` is the Optuna study. Needs `pip install 'dovetail[optuna]'`.

    >>> search("recipes/charlm.py:charlm", {"widht": [32, 64]}, metric="held_out_loss", steps=400)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dovetail.vocabulary.errors.InvalidWorkload: program 'charlm' must take every parameter; it takes ['width', ...], \
not 'widht'. Did you mean 'width'?
    """
    described = Search(
        program,
        space,
        metric=metric,
        goal=goal,
        sampler=sampler,
        pruner=pruner,
        count=count,
        at_once=at_once,
        steps=steps,
        epochs=epochs,
        at_least=at_least,
        at_most=at_most,
        patience=patience,
        name=name,
    )
    return run(described, **how)
