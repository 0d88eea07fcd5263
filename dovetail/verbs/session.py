"""`dt.Session`: runs one after another in one Python process, without starting workers for each."""

import functools
from pathlib import Path
from types import TracebackType
from typing import Any

from dovetail.control import Result
from dovetail.engines import LocalEngine, Spares, detect
from dovetail.verbs.engine_places import Given
from dovetail.verbs.make_plan import plan
from dovetail.verbs.run_workload import check_planned, run
from dovetail.vocabulary import DovetailError, Plan


class Session:
    """Keeps this machine's workers from one run to the next: whatever comes after the first finds them warm.

    A worker costs seconds to start, because it imports torch; a small workload trains in less. Programs are loaded anew
    for each run, so that edits count; a module that registers something with an installed library does so again, and is
    refused by name where that cannot be. Workers take memory until the session is closed.

    >>> from dovetail.describe import grid
    >>> with Session(store="runs") as session:
    ...     print(session)
    Session(store='runs')
    >>> session.run(grid("dovetail.testing.programs:dropout", seed=[0, 1], steps=9))
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: a session must be open to run something; this one is closed.
    """

    def __init__(self, *, store: str | Path = ".dovetail") -> None:
        self._store = str(store)
        self._spares: Spares | None = Spares(detect(), lasting=True)

    def run(self, what: Plan | Given, **how: Any) -> Result:
        """Run a plan or a workload, as `dt.run` does, with its arguments."""
        if isinstance(what, Plan) and what.cluster and what.workload:
            check_planned(what, what.workload, detect())
        return run(what, store=self._store, engine=self._engine(), **how)

    def plan(self, workload: Given, **how: Any) -> Plan:
        """Plan a workload, as `dt.plan` does, with its arguments."""
        return plan(workload, store=self._store, engine=self._engine(), **how)

    def close(self) -> None:
        """Stop the workers. May be called twice."""
        spares, self._spares = self._spares, None
        if spares is not None:
            spares.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session(store={self._store!r})"

    def _engine(self) -> functools.partial[LocalEngine]:
        if self._spares is None:
            raise DovetailError("a session must be open to run something; this one is closed.")
        return functools.partial(LocalEngine, spares=self._spares)
