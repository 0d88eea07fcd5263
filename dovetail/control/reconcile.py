"""What changed between the workload that a store knows and the one that is to run now, and putting that on record."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from dovetail.control.state import State
from dovetail.describe import deposit
from dovetail.engines.provisioning.base import NUMBER
from dovetail.store import Store, keep_links, write_atomically
from dovetail.vocabulary import Event, StoreError, Task, TaskId, Workload
from dovetail.vocabulary.event_base import E
from dovetail.vocabulary.events import (
    AttemptLost,
    TaskChanged,
    TaskDescribed,
    TaskExtended,
    TaskFailed,
    TaskReturned,
    TaskVanished,
    Warned,
)
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.request_events import TaskRestarted, TaskResumed, TaskRetried


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """Which tasks are new, the same, given another stopping rule, replaced by an edit, gone, or back; and which are
    trained anew because that was asked for.

    `changed` holds pairs of the task as it was and as it is. Tasks that were replaced or are gone keep all they
    have in the store.

    >>> Reconciliation().lines()
    []
    """

    new: tuple[Task, ...] = ()
    same: tuple[Task, ...] = ()
    extended: tuple[tuple[Task, Task], ...] = ()
    changed: tuple[tuple[Task, Task], ...] = ()
    vanished: tuple[Task, ...] = ()
    returned: tuple[Task, ...] = ()
    restarted: tuple[Task, ...] = ()

    def lines(self) -> list[str]:
        """What a user should know before the run starts; nothing where all is new or all the same."""
        pairs = [task for pair in (*self.extended, *self.changed) for task in pair]
        tasks = (*self.new, *self.same, *self.vanished, *self.returned, *self.restarted, *pairs)
        redact = Redactor(task.parameters for task in tasks)
        return [redact(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        anew = [f"starts anew, as was asked: {task.name}" for task in self.restarted]
        if anew:
            return anew + [f"new: {task.name}" for task in self.new]
        if not (self.extended or self.changed or self.vanished or self.returned or (self.new and self.same)):
            return []
        lines = [f"{len(self.same)} tasks go on as they are"] if self.same else []
        lines += [f"new: {task.name}" for task in self.new]
        lines += [f"goes on, {after.stop} instead of {before.stop}: {after.name}" for before, after in self.extended]
        lines += [f"starts anew, its program or parameters were edited: {after.name}" for _, after in self.changed]
        lines += [f"no longer in the file, kept in the store: {task.name}" for task in self.vanished]
        return lines + [f"is back in the file and goes on: {task.name}" for task in self.returned]


def reconcile(workload: Workload, store: Store, *, gone: set[TaskId]) -> Reconciliation:
    """Compare a workload with what `store` knows under its name; `gone` are identities no longer in the file."""
    known = {task.identity: task for _, task in store.tasks()}
    own = {task.identity: task for _, task in store.tasks(workload=workload.name)}
    elsewhere = {task.identity for name, task in store.tasks() if name != workload.name}
    by_name = {task.name: task for identity, task in own.items() if identity not in gone}
    now = {task.identity: task for task in workload.tasks}
    changed = [(by_name[t.name], t) for i, t in now.items() if i not in known and t.name in by_name]
    replaced = {before.identity for before, _ in changed}
    # Another workload may have it, too: what it has done there it has done.
    here = [(known[i], t) for i, t in now.items() if i in known]
    return Reconciliation(
        new=tuple(t for i, t in now.items() if i not in known and t.name not in by_name),
        same=tuple(t for before, t in here if before.stop == t.stop and t.identity not in gone),
        extended=tuple((before, t) for before, t in here if before.stop != t.stop),
        changed=tuple(changed),
        vanished=tuple(t for i, t in own.items() if i not in {*now, *gone, *replaced, *elsewhere}),
        returned=tuple(t for before, t in here if t.identity in gone and before.stop == t.stop),
    )


def events_of(found: Reconciliation, *, at_seconds: float) -> list[Event]:
    """The events that put a reconciliation on record."""

    def event(kind: type[E], task: Task, **fields: Any) -> E:
        return kind(task=task.identity, at_seconds=at_seconds, **fields)

    return [
        *(event(TaskDescribed, task) for task in found.new),
        *(event(TaskChanged, before, by=after.identity) for before, after in found.changed),
        *(event(TaskDescribed, after) for _, after in found.changed),
        *(event(TaskExtended, now, before=str(before.stop), after=str(now.stop)) for before, now in found.extended),
        *(event(TaskVanished, task) for task in found.vanished),
        *(event(TaskReturned, task) for task in [*found.returned, *(after for _, after in found.extended)]),
    ]


def bring_up_to_date(state: State, store: Store, *, fresh: bool = False) -> Reconciliation:
    """Put on record what changed since this workload last ran, and that whoever failed or was lost may try again; or,
    `fresh`, that every task is trained anew."""
    # The tasks of an open workload are those of the store, each of the workload it was submitted with.
    stays = state.workload.open
    found = Reconciliation() if stays else reconcile(state.workload, store, gone=state.ledger.gone())
    if fresh:
        found = dataclasses.replace(
            found, restarted=tuple(t for i, t in state.tasks.items() if state.ledger[i].attempt)
        )
    events = [*events_of(found, at_seconds=state.now()), *_tried_again(state)]
    events += [state.ledger.event(TaskRestarted, task.identity) for task in found.restarted]
    events += [
        state.ledger.event(TaskFailed, task, reason=reason)
        for task, reason in store.unreadable.items()
        if task in state.tasks and not state.ledger.has_ended(task)
    ]
    if store.home is not None:
        try:
            deposit(store.home, write=write_atomically)
        except OSError as error:
            raise StoreError(f"the store at {store.home} must be writable; found: {error}.") from error
    if store.fell_back:
        message = (
            f"the store was damaged and set aside as damaged-store.sqlite: {store.fell_back}. Its last whole "
            f"copy is used; tasks go on from their checkpoints."
        )
        events.append(Warned(at_seconds=state.now(), message=message))
    if store.missing:
        message = (
            f"the store must hold all that was acknowledged; {store.missing}, because its file or its log was removed "
            f"or damaged. Submit again what is not there; tasks that are go on from their checkpoints."
        )
        events.append(Warned(at_seconds=state.now(), message=message))
    store.add(hardware=[("cluster", state.cluster)])
    keep_links(store, state.cluster, label=NUMBER)
    tasks = [] if stays else [(state.workload.name, task) for task in state.tasks.values()]
    state.ledger.record(events, tasks=tasks)
    return found


def _tried_again(state: State) -> Iterator[Event]:
    """The events after which each task can be planned again."""
    workload, ledger = state.workload, state.ledger
    for task in state.tasks:
        one = ledger[task]
        if one.cancelling and not ledger.has_ended(task):  # as was promised before the controller ended
            yield ledger.ending(task, step=one.saved_step)
            continue
        if one.paused and not workload.open:  # whoever runs a workload wants all of it
            yield ledger.event(TaskResumed, task)
        again = one.status == "failed" or (one.status == "halved" and workload.halving is None)
        if one.status == "running":  # its controller was killed
            yield ledger.event(AttemptLost, task, reason="its controller ended", of_run=True)
        has_lost = one.losses and one.status in ("pending", "paused", "running")
        if (again and not workload.open) or has_lost:  # retries are a run's own
            yield ledger.event(TaskRetried, task)
