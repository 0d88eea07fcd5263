"""What all events have in common; each kind of them is in `events`, `node_events` or `request_events`."""

import dataclasses
from typing import Any, ClassVar, TypeVar

from dovetail.vocabulary.work import TaskId

COLUMNS: dict[str, tuple[tuple[str, str, Any], ...]] = {}
"""By kind, of each field beside kind, task, attempt and time: its key in the store, its name, and its default. Filled
where all kinds are listed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a task (or, with an empty task, to the whole), in its n-th attempt."""

    kind: ClassVar[str]
    body: ClassVar[str] = ""
    """The one field whose own fields are stored in place of it, where there is one."""

    at_seconds: float
    task: TaskId = TaskId("")
    attempt: int = 0

    def data(self) -> dict[str, Any]:
        """What is stored beside kind, task, attempt and time; records in it go through `to_json`.

        >>> from dovetail.vocabulary.events import CheckpointSaved
        >>> CheckpointSaved(task="a", attempt=1, at_seconds=12.5, step=10).data()
        {'step': 10}
        """
        found = {key: value for key, name, default in COLUMNS[self.kind] if (value := getattr(self, name)) != default}
        if not self.body:
            return found
        inner = found.pop(self.body)
        return {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner) if field.init} | found


E = TypeVar("E", bound=Event)
