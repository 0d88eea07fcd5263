"""Whether the checkpoints of tasks will fit the disk that they go to: told before anything is trained, not at its end.

A checkpoint holds at least the parameters and the optimizer's state, which trials measure. Nothing is known of folders
elsewhere, such as object stores.
"""

from pathlib import Path

from dovetail.control.state import State
from dovetail.store import Store, checkpoints_of, free_bytes
from dovetail.vocabulary import TaskId
from dovetail.vocabulary.events import Warned
from dovetail.vocabulary.units import show_bytes

_ADVICE = "Free some space, or use a larger disk (--store, --checkpoints)."


class DiskRoom:
    """Looks at each task once, when it is known how large its checkpoints are."""

    def __init__(self, state: State, *, store: Store) -> None:
        self._state = state
        self._folder = checkpoints_of(store.home.resolve()) if store.home is not None else None
        self._seen: set[TaskId] = set()

    def check(self) -> None:
        """Fail the tasks none of whose checkpoints can be written, since each is larger than what is free, and warn
        where the last ones of all others together are."""
        sizes = self._new_sizes() if isinstance(self._folder, Path) else {}
        if not sizes:
            return
        assert isinstance(self._folder, Path)
        self._seen.update(sizes)
        free = free_bytes(self._folder)
        where = f"at {self._folder}, where {show_bytes(free)} are free. {_ADVICE}"
        self._state.fail(
            {
                task: f"a checkpoint of it must fit the disk: it takes at least {show_bytes(size)} {where}"
                for task, size in sizes.items()
                if size > free
            }
        )
        # Whoever has saved before will remove an older checkpoint for each new one.
        fitting = [size for task, size in sizes.items() if size <= free and not self._state.ledger[task].saved_step]
        if sum(fitting) > free:
            needed = f"those of {len(fitting)} tasks take at least {show_bytes(sum(fitting))} {where}"
            message = f"the last checkpoints of all tasks must fit the disk: {needed}"
            self._state.ledger.record([Warned(at_seconds=self._state.now(), message=message)])

    def _new_sizes(self) -> dict[TaskId, int]:
        """At least how many bytes a checkpoint takes, of each task that was not looked at yet and was measured."""
        of_family: dict[str, int] = {}
        for profile in self._state.ledger.profiles():
            size = profile.parameter_bytes + profile.optimizer_bytes
            of_family[profile.family] = min(size, of_family.get(profile.family, size))
        return {
            task: size
            for task, one in self._state.known()
            if task not in self._seen and one.fingerprint and (size := of_family.get(one.fingerprint.family, 0))
        }
