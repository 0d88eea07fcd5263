"""Where a workload runs: this machine, a Ray cluster, or an engine of the caller's own."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from dovetail.describe import Search
from dovetail.describe.programs import PICKLED, programs_of
from dovetail.engines import Engine, LocalEngine, Spares, detect
from dovetail.store import RemoteFolder, checkpoints_of
from dovetail.verbs.choices import check_name
from dovetail.vocabulary import Cluster, DovetailError, Program, Workload

ENGINES = ("local", "ray")

MakeEngine = Callable[..., Engine]
"""What makes an engine: called with a cluster and, by name, with the store's directory `home` and `silence_seconds`,
after which a worker counts as lost."""

Given = Workload | Callable[[], Workload]
"""A workload, or what reads one; workers start meanwhile."""

Described = TypeVar("Described", bound=Workload | Search)


@contextlib.contextmanager
def open_place(
    engine: str | Engine | MakeEngine,
    *,
    address: str,
    programs: Sequence[Program],
    home: Path,
    spares: Spares | None = None,
) -> Iterator[tuple[Cluster, MakeEngine]]:
    """The cluster of an engine on which these programs are to run, and what makes the engine, given a cluster and a
    store's directory `home`. `spares` are workers of this machine that have started already. An engine of one's own is
    for this machine, unless its caller names a cluster.

    >>> with open_place("local", address="auto", programs=[], home=Path()) as (cluster, make):
    ...     len(cluster.nodes)
    1
    """
    check_engine(engine)
    if isinstance(engine, Engine):
        yield detect(), lambda cluster, **rest: engine
    elif callable(engine):
        yield detect(), engine
    elif engine == "local":
        # Again where it was for the spares: what reads a workload may choose among the devices.
        yield detect(), functools.partial(LocalEngine, spares=spares)
    else:
        from dovetail.engines.ray import RayEngine, connected, survey

        with connected(address, programs=programs, home=home):
            shared = _shared(programs, home)
            cluster, nodes = survey(home, shared=shared)
            yield cluster, functools.partial(RayEngine, nodes=nodes, shared=shared)


@contextlib.contextmanager
def read_workload(
    what: Described | Callable[[], Described], *, engine: str | Engine | MakeEngine
) -> Iterator[tuple[Described, Spares | None]]:
    """A workload or a search, and the workers that have started while it was read, if it still had to be."""
    check_engine(engine)
    if isinstance(what, Workload | Search):
        yield what, None
    elif engine != "local":
        yield what(), None
    else:
        with contextlib.closing(Spares(detect())) as spares:
            with spares.importing_along():
                found = what()
            yield found, spares


def described_programs(described: Workload | Search) -> list[Program]:
    """The programs that are to run.

    >>> from dovetail.describe import grid
    >>> sweep = grid("dovetail.testing.programs:dropout", seed=[0], steps=9)
    >>> [program.function for program in described_programs(sweep)]
    ['dropout']
    """
    if isinstance(described, Workload):
        return [program for task in described.tasks for program in programs_of(task)]
    assert isinstance(described.program, Program)
    return [described.program]


def check_engine(engine: str | Engine | MakeEngine) -> None:
    """Refuse an engine that there is not.

    >>> check_engine("loca")
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: the engine must be one of local, ray, got 'loca'; did you mean 'local'?
    """
    if isinstance(engine, str):
        check_name("the engine", engine, ENGINES)
    elif not (isinstance(engine, Engine) or callable(engine)):
        raise DovetailError(f"the engine must be a name, an Engine or a function that makes one, got {engine!r}.")


def _shared(programs: Sequence[Program], home: Path) -> list[Path]:
    """The folders that every node must see: where checkpoints go, if that is a directory, and the store, if pickled
    programs come from there."""
    checkpoints = checkpoints_of(home)
    beside = not isinstance(checkpoints, RemoteFolder) and checkpoints.parent == home
    pickled = any(program.reference.startswith(PICKLED) for program in programs)
    store = [home] if beside or pickled else []
    return store if beside or isinstance(checkpoints, RemoteFolder) else [*store, checkpoints]
