"""Engines of this machine whose workers are forked by one process for all tests, as `dovetail run` has them: to import
torch takes each of them seconds otherwise."""

import atexit
from pathlib import Path
from typing import Any

from dovetail.engines import LocalEngine
from dovetail.engines.spares import Spares
from dovetail.vocabulary import Cluster

_SPARES: dict[tuple[str, ...], Spares] = {}


def forking_engine(cluster: Cluster, *, home: Path, **more: Any) -> LocalEngine:
    """An engine of these cores; what it started ends with it, but for the process that forks."""
    names = tuple(device.name for device in cluster.devices)
    spares = _SPARES.get(names)
    if spares is None or spares.server is None or not spares.server.is_current:
        if spares is not None:
            spares.close()
        spares = _SPARES[names] = Spares(cluster)
    return LocalEngine(cluster, home=home, spares=spares, **more)


@atexit.register
def _close() -> None:
    for each in _SPARES.values():
        each.close()
