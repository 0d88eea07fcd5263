"""What users ask of tasks while they run: take some on, pause, resume, cancel, prefer, set deadlines, clone.

Called by the loop, from its thread. What is asked for is put on record first, so that a controller killed right after
its answer has not forgotten it; what follows from it (a stop, a new plan) is part of the answer, and the loop does it.
"""

import dataclasses
import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.control.daemon import cloning, waits
from dovetail.control.daemon.commands import UNKNOWN
from dovetail.control.daemon.submissions import (
    NAME_LENGTH,
    Submission,
    changed,
    current,
    read_deadline,
    read_name,
    read_priority,
    shown,
)
from dovetail.control.deciding import Deciding
from dovetail.control.state import State
from dovetail.store import Folder, Store, checkpoints_of
from dovetail.vocabulary import DovetailError, Event, InvalidWorkload, Task, TaskId
from dovetail.vocabulary.events import (
    TaskCancelled,
    TaskChanged,
    TaskDescribed,
    TaskExtended,
    TaskPruned,
    TaskReturned,
    TaskSubmitted,
)
from dovetail.vocabulary.redact import show_value
from dovetail.vocabulary.request_events import (
    CancelAsked,
    DeadlineChanged,
    PriorityChanged,
    PruneAsked,
    TaskPaused,
    TaskRestarted,
    TaskResumed,
    TaskRetried,
)
from dovetail.vocabulary.units import show_seconds

NAMED = 12
# Among so many of the newest names one is looked for that may have been meant: others wait meanwhile.
NEAR = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client is `told`, and what the loop is to do about it.

    `because` says why another decision is due, if one is; the attempt at the task `stop` is to be saved and ended, for
    this `reason`; `has_come` says that something may have to be measured.
    """

    told: Mapping[str, Any]
    because: str = ""
    stop: str = ""
    reason: str = ""
    has_come: bool = False


class Requests:
    """Carries out what users ask of the tasks of a state, which are decided upon by `deciding`. `admit` raises
    `DovetailError` where tasks that come are not to be taken on."""

    def __init__(
        self,
        state: State,
        *,
        store: Store,
        deciding: Deciding,
        admit: Callable[[Iterable[Task]], None],
    ) -> None:
        self._state, self._store, self._ledger, self._deciding = state, store, state.ledger, deciding
        self._admit = admit
        self._listing = waits.Listing(state)

    def answer(self, request: Mapping[str, Any]) -> Answer:
        """Carry out a request; what is wrong with it is the answer's `error`. What is said shows no secrets."""
        found = self._carry_out(request)
        said = {key: self._ledger.redact(str(found.told[key])) for key in ("done", "error") if key in found.told}
        return dataclasses.replace(found, told={**found.told, **said})

    def _carry_out(self, request: Mapping[str, Any]) -> Answer:
        verbs: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "submit": self.submit,
            "list": self.show,
            "pause": self.pause,
            "resume": self.resume,
            "cancel": self.cancel,
            "priority": self.priority,
            "deadline": self.deadline,
            "clone": self.clone,
        }
        try:
            if request["do"] not in verbs:
                raise InvalidWorkload(
                    f"a command must be one of {', '.join(verbs)}, status or stop, got {request['do']!r}."
                )
            return verbs[request["do"]](request)
        except DovetailError as error:
            return Answer(told={"error": str(error)})
        except Exception as error:  # no request may end the training of others
            return Answer(told={"error": f"{UNKNOWN} {error!r}"})

    def show(self, request: Mapping[str, Any]) -> Answer:
        """Where every task stands, why it waits, and when it should start and end."""
        rows = self._listing.now(self._deciding.outlook())
        return Answer(told={"now_seconds": self._state.now(), "tasks": rows})

    def submit(self, request: Mapping[str, Any]) -> Answer:
        """Take tasks on: all of them, or none and why."""
        self._check_open("submit")
        return self.take_on(request["submission"], asked_by=_who(request))

    def take_on(self, submission: Submission, *, asked_by: str = "") -> Answer:
        """Take the tasks of a submission on: all of them, or none and why."""
        names = [task.name for task in submission.tasks]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise InvalidWorkload(
                f"submitted tasks must have names of their own; {twice[0]!r} is there more than once."
            )
        if submission.anew:
            begun = [task.identity for task in submission.tasks if self._ledger[task.identity].attempt]
            self._ledger.record([self._ledger.event(TaskRestarted, task) for task in begun])
        events = self._arrivals(submission.tasks)
        self._admit(submission.tasks)
        self._take_on(submission, events, asked_by=asked_by)
        count = _count(len(names))
        return Answer(told={"done": f"{count} submitted", "tasks": names}, because=f"{count} came", has_come=True)

    def pause(self, request: Mapping[str, Any]) -> Answer:
        """Save a task and keep it out of plans until it is resumed."""
        task = self._find(request)
        one = self._ledger[task]
        if self._ledger.has_ended(task) or one.paused:
            raise InvalidWorkload(f"a task to pause must be running or waiting; {self._said(task)}.")
        self._ledger.record([self._ledger.event(TaskPaused, task, asked_by=_who(request))])
        done = f"{self._name(task)} is paused" + (" once it is saved" if one.status == "running" else "")
        return Answer(told={"done": done}, because="a task was paused", stop=task, reason="paused")

    def resume(self, request: Mapping[str, Any]) -> Answer:
        """Let a paused task be placed again; one that failed or was cancelled is tried again."""
        task = self._find(request)
        one = self._ledger[task]
        if one.status not in ("failed", "cancelled") and not one.paused:
            raise InvalidWorkload(f"a task to resume must be paused, failed or cancelled; {self._said(task)}.")
        events: list[Event] = [self._ledger.event(TaskResumed, task, asked_by=_who(request))] if one.paused else []
        events += (
            [self._ledger.event(TaskRetried, task, asked_by=_who(request))] if self._ledger.has_ended(task) else []
        )
        self._ledger.record(events)
        done = f"{self._name(task)} goes on from step {one.saved_step}"
        return Answer(told={"done": done}, because="a task was resumed", has_come=True)

    def cancel(self, request: Mapping[str, Any]) -> Answer:
        """Save a task and run it no more."""
        task = self._find(request)
        if self._ledger.has_ended(task):
            raise InvalidWorkload(f"a task to cancel must not have ended; {self._said(task)}.")
        one = self._ledger[task]
        if one.status == "running":  # once it is saved
            self._ledger.record([self._ledger.event(CancelAsked, task, asked_by=_who(request))])
        else:
            self._ledger.record([self._ledger.event(TaskCancelled, task, step=one.saved_step, asked_by=_who(request))])
        done = f"{self._name(task)} is cancelled"
        return Answer(told={"done": done}, because="a task was cancelled", stop=task, reason="cancelled")

    def prune(self, task: TaskId, *, reason: str, metric: str = "", value: float = 0.0) -> Answer:
        """Save a task and end it on behalf of a search; one that is about to end anyway is left to that."""
        one = self._ledger[task]
        if self._ledger.has_ended(task) or one.cancelling:
            return Answer(told={})
        if one.status == "running":  # once it is saved
            self._ledger.record([self._ledger.event(PruneAsked, task, reason=reason)])
        else:
            judged: dict[str, Any] = {"step": one.step, "metric": metric, "value": value}
            self._ledger.record([self._ledger.event(TaskPruned, task, reason=reason, **judged)])
        return Answer(told={}, because="a task was pruned", stop=task, reason=reason)

    def priority(self, request: Mapping[str, Any]) -> Answer:
        """Let a task count more or less to planners and policies."""
        task, priority = self._find(request), read_priority(request.get("priority"))
        if self._ledger.has_ended(task):
            raise InvalidWorkload(f"a task to prefer must not have ended; {self._said(task)}.")
        before = self._ledger[task].priority
        self._ledger.record([self._ledger.event(PriorityChanged, task, priority=priority, asked_by=_who(request))])
        done = f"{self._name(task)} has priority {priority:g}, before {before:g}"
        return Answer(told={"done": done}, because="a task has another priority")

    def deadline(self, request: Mapping[str, Any]) -> Answer:
        """Say when a task is to have ended, or that it need not by any time."""
        task = self._find(request)
        due = read_deadline(request.get("deadline_seconds"), now=self._state.now())
        if self._ledger.has_ended(task):
            raise InvalidWorkload(f"a task to have a deadline must not have ended; {self._said(task)}.")
        self._ledger.record([self._ledger.event(DeadlineChanged, task, deadline_seconds=due, asked_by=_who(request))])
        left = f"is to have ended in {show_seconds(due - self._state.now())}" if due < math.inf else "has no deadline"
        return Answer(told={"done": f"{self._name(task)} {left}"}, because="a task has another deadline")

    def clone(self, request: Mapping[str, Any]) -> Answer:
        """A copy of a task with changed parameters: warm, with its last saved weights, or fresh."""
        self._check_open("clone")
        other = self._find(request)
        record, warm = self._state.tasks[other], bool(request.get("warm"))
        changes = request.get("parameters", {})
        parameters, found = changed(record, changes), current(record.program)
        checkpoint, step, begins_with = None, 0, ""
        if warm:
            checkpoint, step = self._saved(other)
            begins_with = cloning.digest_of(checkpoint)
        name = request.get("name") or clone_name(record.name, changes, step)
        task = dataclasses.replace(record, name=name, program=found, parameters=parameters, begins_with=begins_with)
        events = self._arrivals([task])
        if checkpoint is not None:
            assert self._store.home is not None
            cloning.keep(checkpoint, checkpoints_of(self._store.home) / task.identity)
        one = self._ledger[other]
        # A workload of its own: whoever runs the other's file again must not find that this one is gone from it.
        submission = Submission(
            workload=f"{self._workload(other)}, cloned",
            tasks=(task,),
            priority=one.priority,
            entity=one.entity,
            of=record.name,
            step=step,
        )
        self._take_on(submission, events, asked_by=_who(request))
        said = f"with the weights of step {step} of {record.name}" if warm else "fresh"
        done = f"{task.name} begins {said}"
        return Answer(told={"done": done, "task": task.name}, because="1 task came", has_come=True)

    # Taking on

    def _check_open(self, verb: str) -> None:
        if not self._state.is_open or self._state.to_come is not None:  # a search asks for its own
            raise InvalidWorkload(
                f"{verb} must go to a daemon; this controller carries one workload, {self._state.workload.name!r}, "
                f"to its end. Start one with 'dovetail daemon' when it is done, or on another store."
            )

    def _arrivals(self, tasks: Iterable[Task]) -> list[Event]:
        """What taking these tasks on means."""
        by_name = {record.name: task for task, record in self._state.tasks.items()}
        return [event for task in tasks for event in self._arrival(task, by_name.get(task.name))]

    def _arrival(self, task: Task, same: TaskId | None) -> list[Event]:
        """It is new, takes the place of the one of the `same` name that has ended, or has more to do."""
        if same is not None and not self._ledger.has_ended(same):
            raise InvalidWorkload(
                f"a task must have a name of its own; {self._said(same)}. Rename the new one, or cancel the old one "
                f"first."
            )
        events: list[Event] = []
        if same is not None and same != task.identity:
            events.append(self._ledger.event(TaskChanged, same, by=task.identity))
        if self._ledger[task.identity].vanished:
            events.append(self._ledger.event(TaskReturned, task.identity))
        if self._ledger[task.identity].paused:
            events.append(self._ledger.event(TaskResumed, task.identity))
        if not self._ledger.has_ended(task.identity):
            return [*events, self._ledger.event(TaskDescribed, task.identity)]
        if self._ledger[task.identity].status != "finished":
            return [*events, self._ledger.event(TaskRetried, task.identity)]
        ((_, before),) = self._store.tasks(identity=task.identity)
        stop = before.stop
        if stop == task.stop:
            raise InvalidWorkload(
                f"a task must be new or have something left to do; {task.name!r} has finished ({stop}). Change its "
                f"parameters or its end, or clone it."
            )
        return [*events, self._ledger.event(TaskExtended, task.identity, before=str(stop), after=str(task.stop))]

    def _take_on(self, submission: Submission, events: list[Event], *, asked_by: str) -> None:
        claim: dict[str, Any] = {
            "priority": submission.priority,
            "deadline_seconds": submission.deadline_seconds,
            "entity": submission.entity,
            "of": submission.of,
            "step": submission.step,
            "asked_by": asked_by,
            "reason": submission.reason,
        }
        submitted = [self._ledger.event(TaskSubmitted, task.identity, **claim) for task in submission.tasks]
        self._ledger.record([*events, *submitted], tasks=[(submission.workload, task) for task in submission.tasks])
        self._state.replace(submission.tasks, gone=[event.task for event in events if isinstance(event, TaskChanged)])

    # Looking up

    def _find(self, request: Mapping[str, Any]) -> TaskId:
        """The task that a request names."""
        name = request.get("task")
        for task, record in self._state.tasks.items():
            if record.name == name:
                return task
        names = [record.name for record in self._state.tasks.values()]
        word = name[:NAME_LENGTH] if isinstance(name, str) else ""
        near = difflib.get_close_matches(word, names[-NEAR:], 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise InvalidWorkload(f"the task must be one of {names[:NAMED]}{more}, got {shown(name)}.{hint}")

    def _name(self, task: TaskId) -> str:
        return self._state.tasks[task].name

    def _said(self, task: TaskId) -> str:
        one = self._ledger[task]
        status = "paused" if one.paused and not self._ledger.has_ended(task) else one.status
        return f"{self._name(task)!r} is {status} at step {one.step}"

    def _saved(self, task: TaskId) -> tuple[Folder, int]:
        found = cloning.last_saved(self._store, task)
        if found is None:
            raise InvalidWorkload(
                f"a task must have saved something to be cloned warm; {self._said(task)} and has no checkpoint. "
                f"Wait for its first save, or clone it with --fresh."
            )
        return found

    def _workload(self, task: TaskId) -> str:
        ((name, _),) = self._store.tasks(identity=task)
        return name.removesuffix(", cloned")


def clone_name(name: str, changes: Mapping[str, Any], step: int) -> str:
    """What a clone is called unless told otherwise.

    >>> clone_name("digits", {"learning_rate": 0.1}, 500), clone_name("digits", {}, 0)
    ('digits, learning_rate=0.1, from step 500', 'digits, again')
    """
    words = [f"{key}={show_value(key, value, str(value))}" for key, value in changes.items()]
    words += [f"from step {step}"] if step else []
    return ", ".join([name, *(words or ["again"])]).replace("/", "_")


def _who(request: Mapping[str, Any]) -> str:
    """Who asks, for the record, where a client says so."""
    return read_name(request.get("asked_by") or "", what="who asks")


def _count(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
