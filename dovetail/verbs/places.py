"""Where a workload runs: this machine, or a Ray cluster."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.describe.programs import PICKLED
from dovetail.engines import Engine, LocalEngine, Spares, detect
from dovetail.store import RemoteFolder, checkpoints_of
from dovetail.vocabulary import Cluster, DovetailError, Workload

ENGINES = ("local", "ray")

Make = Callable[..., Engine]


@contextlib.contextmanager
def place(
    engine: str, *, address: str, workload: Workload, home: Path, spares: Spares | None = None
) -> Iterator[tuple[Cluster, Make]]:
    """The cluster of an engine, and what makes the engine, given a cluster and a store's directory `home`. `spares` are
    workers of this machine that have started already.

    >>> from dovetail.describe import grid
    >>> workload = grid("dovetail.testing.programs:dropout", seed=[0, 1], steps=9)
    >>> with place("local", address="auto", workload=workload, home=Path()) as (cluster, make):
    ...     len(cluster.nodes)
    1
    """
    check_engine(engine)
    if engine == "local":
        # Again where it was for the spares: what reads a workload may choose among the devices.
        yield detect(), functools.partial(LocalEngine, spares=spares)
        return
    from dovetail.engines.ray import RayEngine, connected, survey

    with connected(address, programs=[task.program for task in workload.tasks], home=home):
        cluster, nodes = survey(home, shared=_shared(workload, home))
        yield cluster, functools.partial(RayEngine, nodes=nodes)


@contextlib.contextmanager
def read(what: Workload | Callable[[], Workload], *, engine: str) -> Iterator[tuple[Workload, Spares | None]]:
    """A workload, and the workers that have started while it was read, if it still had to be."""
    check_engine(engine)
    if not callable(what):
        yield what, None
    elif engine != "local":
        yield what(), None
    else:
        with contextlib.closing(Spares(detect())) as spares:
            with spares.importing_along():
                found = what()
            yield found, spares


def check_engine(engine: str) -> None:
    """Refuse an engine that there is not."""
    if engine not in ENGINES:
        raise DovetailError(f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}.")


def _shared(workload: Workload, home: Path) -> list[Path]:
    """The folders that every node must see: where checkpoints go, if that is a directory, and the store, if pickled
    programs come from there."""
    checkpoints = checkpoints_of(home)
    beside = not isinstance(checkpoints, RemoteFolder) and checkpoints.parent == home
    pickled = any(task.program.reference.startswith(PICKLED) for task in workload.tasks)
    store = [home] if beside or pickled else []
    return store if beside or isinstance(checkpoints, RemoteFolder) else [*store, checkpoints]
