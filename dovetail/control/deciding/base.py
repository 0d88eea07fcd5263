"""What a way of deciding promises: the loop is given one, and runs what it says on whatever engine it was given."""

import abc
import math
from collections.abc import Callable, Iterable, Mapping

from dovetail.control.deciding.outlook import Outlook
from dovetail.control.state import Running, State
from dovetail.vocabulary import Placement, TaskId


class Deciding(abc.ABC):
    """Who runs where, and when. Called by the loop alone, from its thread; reads the state and writes none of it but
    the queues and the plans.

    The loop calls `renew` where something changed, then starts what is `ready`, then stops what is `unwanted`, and
    waits for something to happen, until `wake_seconds` at most.
    """

    @abc.abstractmethod
    def renew(self, because: str) -> None:
        """Something changed that may make another decision better, and this is what."""

    @abc.abstractmethod
    def ready(self) -> list[Placement]:
        """What is to start now: its devices are free and count as busy from here on."""

    @abc.abstractmethod
    def unwanted(self) -> Iterable[tuple[str, str]]:
        """The orders that are to save and end now, each with the reason."""

    @abc.abstractmethod
    def freed(self, running: Running, *, taken_seconds: float) -> str:
        """An order has ended after so long and its devices are free: why that calls for `renew`, or nothing."""

    def outlook(self) -> Mapping[TaskId, Outlook]:
        """When each task should start and end as things stand, and why it waits; nothing of those it cannot tell."""
        return {}

    def ended(self, task: TaskId) -> str:
        """A task has ended, maybe before others of its gang: why that calls for `renew`, or nothing."""
        return ""

    def wake_seconds(self) -> float:
        """When it wants to be asked again though nothing has happened, on the engine's clock; infinite: never."""
        return math.inf


Decider = Callable[[State], Deciding]
"""What makes a way of deciding for a state."""
