"""Trackers by what users write: `mlflow:./mlruns`, `wandb:project`, `tensorboard:./runs`."""

import dataclasses
import difflib
from collections.abc import Iterable

from dovetail.trackers.base import Tracker, check_package
from dovetail.trackers.mlflow import MlflowTracker
from dovetail.trackers.tensorboard import TensorboardTracker
from dovetail.trackers.wandb import WandbTracker
from dovetail.vocabulary import DovetailError

TRACKERS: dict[str, type[Tracker]] = {
    "mlflow": MlflowTracker,
    "tensorboard": TensorboardTracker,
    "wandb": WandbTracker,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackerAddress:
    """A tracker and its place, as it was `given` and in full."""

    kind: str
    place: str
    given: str

    def connect(self) -> Tracker:
        """The tracker, in a process of its own. Imports its package."""
        return TRACKERS[self.kind](self.place)  # type: ignore[call-arg]  # each takes its place


def parse_tracker(given: str) -> TrackerAddress:
    """Read what a user wrote.

    >>> parse_tracker("tensorboard:/data/runs").place
    '/data/runs'
    >>> parse_tracker("mlfow:./mlruns")
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: a tracker must be mlflow:PLACE, tensorboard:FOLDER or wandb:PROJECT, got \
'mlfow:./mlruns'; did you mean 'mlflow'?
    """
    kind, _, place = str(given).partition(":")
    if kind not in TRACKERS:
        near = difflib.get_close_matches(kind, TRACKERS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise DovetailError(f"a tracker must be mlflow:PLACE, tensorboard:FOLDER or wandb:PROJECT, got {given!r}{hint}")
    return TrackerAddress(kind=kind, place=TRACKERS[kind].resolve(place), given=str(given))


def check_trackers(given: str | Iterable[str], *, models: bool = False) -> list[TrackerAddress]:
    """Read what a user wrote, and refuse what could not be written to later: before anything is trained for it."""
    found = [parse_tracker(each) for each in ([given] if isinstance(given, str) else given)]
    found = list({(address.kind, address.place): address for address in found}.values())
    for address in found:
        check_package(TRACKERS[address.kind])
        TRACKERS[address.kind].check(address.place)
    if models and not any(TRACKERS[address.kind].takes_models for address in found):
        raise DovetailError("models must go to a tracker that keeps files, MLflow or W&B; none of these was given.")
    return found
