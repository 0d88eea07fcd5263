"""Where the tasks of an open workload come from where it is not clients that submit them: what the loop is promised."""

import abc
import dataclasses
from collections.abc import Callable, Iterator

from dovetail.control.daemon.submissions import Submission
from dovetail.control.state import State
from dovetail.vocabulary import TaskId


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prune:
    """A task is to be saved and ended, for this reason; `value` is what its `metric` was where it rests."""

    task: TaskId
    reason: str
    metric: str = ""
    value: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promotion:
    """A task that rests goes on; `value` is what its `metric` was."""

    task: TaskId
    metric: str
    value: float


Wish = Submission | Prune | Promotion


class TaskSource(abc.ABC):
    """Asks for tasks as results come, until it is done. Called by the loop alone, from its thread; reads the state and
    hears of events through the ledger, and writes neither."""

    @abc.abstractmethod
    def wishes(self) -> Iterator[Wish]:
        """What is to be done now. Each wish is on record before the next is asked for. Called at every turn of the
        loop, so it is quick where nothing has happened. May raise: then what runs is saved, and the loop raises it."""

    @property
    @abc.abstractmethod
    def to_come(self) -> int:
        """How many more tasks it will ask for, about: what is worth measuring depends on it."""

    @property
    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether nothing more will come, and nothing is waited for."""

    @abc.abstractmethod
    def summary(self) -> str:
        """How far it is, in a few words for people."""


SourceMaker = Callable[[State], TaskSource]
"""What makes a source of tasks for a state."""
