"""Where a workload runs: this machine, or a Ray cluster."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.describe.programs import PICKLED
from dovetail.engines import Engine, LocalEngine, detect
from dovetail.store import Elsewhere, checkpoints_of
from dovetail.vocabulary import Cluster, DovetailError, Workload

ENGINES = ("local", "ray")

Make = Callable[..., Engine]


@contextlib.contextmanager
def place(engine: str, *, address: str, workload: Workload, home: Path) -> Iterator[tuple[Cluster, Make]]:
    """The cluster of an engine, and what makes the engine, given a cluster and a store's directory `home`.

    >>> from dovetail.describe import grid
    >>> workload = grid("dovetail.testing.programs:dropout", seed=[0, 1], steps=9)
    >>> with place("local", address="auto", workload=workload, home=Path()) as (cluster, make):
    ...     make is LocalEngine
    True
    """
    if engine not in ENGINES:
        raise DovetailError(f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    if engine == "local":
        yield detect(), LocalEngine
        return
    from dovetail.engines.ray import RayEngine, connected, survey

    with connected(address, programs=[task.program for task in workload.tasks], home=home):
        cluster, nodes = survey(home, shared=_shared(workload, home))
        yield cluster, functools.partial(RayEngine, nodes=nodes)


def _shared(workload: Workload, home: Path) -> list[Path]:
    """The folders that every node must see: where checkpoints go, if that is a directory, and the store, if pickled
    programs come from there."""
    checkpoints = checkpoints_of(home)
    beside = not isinstance(checkpoints, Elsewhere) and checkpoints.parent == home
    pickled = any(task.program.reference.startswith(PICKLED) for task in workload.tasks)
    store = [home] if beside or pickled else []
    return store if beside or isinstance(checkpoints, Elsewhere) else [*store, checkpoints]
