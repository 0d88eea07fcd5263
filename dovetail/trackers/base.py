"""What a tracker is told, and what it must do: one run for each task, and one for the workload that they are part of.

A tracker is called by one process of its own, never by the controller, so it may be slow or raise. Whoever calls it
knows what was sent (`cursor`); a tracker says what it holds where that may be something else, because its caller, or
itself, was killed in between.
"""

import abc
import dataclasses
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from dovetail.store import Point
from dovetail.vocabulary import DovetailError, FrozenDict


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What there is to tell of a run beside its points; all of it, each time. Secrets are masked already.

    - `key` is the run's own among all runs of all stores, and the same in every process; `subject` is whose run it is:
      a task that is trained anew (`--fresh`) is the same subject, and another run.
    - `parent` is the key of the workload's run; empty for that one itself.
    - `status` is one of `metrics.progress.STATUSES`; `has_ended` where nothing more is to come.
    - `texts` are small files by name, such as the plan.
    """

    key: str
    subject: str
    name: str
    workload: str
    parent: str = ""
    parameters: Mapping[str, Any] = FrozenDict()
    tags: Mapping[str, str] = FrozenDict()
    texts: Mapping[str, str] = FrozenDict()
    status: str = "pending"
    has_ended: bool = False
    started_seconds: float | None = None
    ended_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run that a tracker has found or made. `state` is what the tracker wants to be given back, in this process and
    in later ones. `held` says, by metric, the last step that it holds, where it can tell; else what was noted
    counts."""

    state: str
    held: Mapping[str, int] = FrozenDict()


class Tracker(abc.ABC):
    """Where runs are told of: one instance in one process, called from one thread. Whatever it raises is noted, and it
    is called again later, `open` first: no call may do harm when it is repeated, points apart, of which each is sent
    once, by metric in the order of its steps, and all metrics of one step at the same time."""

    distributions: ClassVar[Sequence[str]]
    """The packages of which one must be installed."""
    least_version: ClassVar[str]
    extra: ClassVar[str]
    takes_models: ClassVar[bool] = True

    @classmethod
    @abc.abstractmethod
    def resolve(cls, place: str) -> str:
        """The place that a user means, in full: the same text for the same place wherever it is asked for. Raises
        `DovetailError` for what is none."""

    @classmethod
    @abc.abstractmethod
    def check(cls, place: str) -> None:
        """Raise `DovetailError` where a resolved place cannot be written, as far as can be told without its package:
        asked before anything is trained, in the process of the controller."""

    @abc.abstractmethod
    def open(self, run: RunFacts, state: str, *, metrics: Iterable[str]) -> OpenedRun:
        """Find the run, or make it where it is not there yet; `state` is what it last gave, empty at first. `metrics`
        are those of which points are to be sent next."""

    @abc.abstractmethod
    def send(self, run: RunFacts, state: str, points: Sequence[Point], *, facts: bool) -> str:
        """Take new points of an open run, and, with `facts`, all else that is told of it; the state from now on. What
        it was given is safe when this returns."""

    def send_model(self, run: RunFacts, state: str, folder: Path) -> None:
        """Take the files of a trained model, where `takes_models`."""
        raise NotImplementedError

    def forget(self, run: RunFacts) -> None:  # noqa: B027  # most have nothing to let go of
        """Let go of what is held open for a run: it is opened again where there is more to send."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything. May be called twice."""


def check_package(tracker: type[Tracker]) -> None:
    """Refuse a tracker whose package is not installed, or is too old, without importing it."""
    name, wanted = tracker.distributions[0], tracker.least_version
    found = [version for each in tracker.distributions if (version := _version(each))]
    install = f"pip install 'dovetail[{tracker.extra}]'"
    if not found:
        raise DovetailError(
            f"tracking with {tracker.extra} must have the package {name}; it is not installed. Install it: {install}."
        )
    if not any(_parts(each) >= _parts(wanted) for each in found):
        raise DovetailError(
            f"tracking with {tracker.extra} must have {name} {wanted} or newer; {found[0]} is installed. Upgrade it: "
            f"{install} --upgrade."
        )


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written; it is made where it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
    except OSError as error:
        raise DovetailError(
            f"a tracker's directory must be one that this user can write; found: {error}. Choose another."
        ) from error


def flatten_parameters(given: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Parameters at one level, for trackers that know no other.

    >>> flatten_parameters({"width": 128, "hub": {"rate": 0.1}})
    {'width': 128, 'hub.rate': 0.1}
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and value:
            found |= flatten_parameters(value, prefix=f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _version(distribution: str) -> str:
    """The version of an installed package; empty where it is not there, or its files are not."""
    module = re.split("[-_]", distribution)[0]
    try:
        return importlib.metadata.version(distribution) if importlib.util.find_spec(module) else ""
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
