"""`dt.connect`: what a daemon, or any running controller, is asked from Python; the command line asks the same way."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.control import Result, ask, open_result
from dovetail.control.daemon.commands import PATIENCE_SECONDS
from dovetail.metrics.progress import ENDED
from dovetail.vocabulary import DovetailError, InvalidWorkload, StoreError, Workload, to_json

# How often the controller is asked where tasks stand, while they are waited for.
POLL_SECONDS = 0.5


class Client:
    """The controller of a store, as another process asks it. Whatever it refuses is raised with the reason.

    >>> Client("nowhere").cancel("a")
    Traceback (most recent call last):
    dovetail.vocabulary.errors.StoreError: a controller must be running on nowhere to take commands; none is. \
Start one: dovetail daemon, or dovetail run.
    """

    def __init__(
        self,
        store: str | Path = ".dovetail",
        *,
        asked_by: str = "",
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._store, self._asked_by, self._patience_seconds = Path(store), asked_by, patience_seconds

    def submit(
        self,
        workload: Workload,
        *,
        priority: float = 1.0,
        deadline_seconds: float | None = None,
        entity: str = "",
        reason: str = "",
    ) -> list[str]:
        """Give a daemon a workload's tasks; gives their names. `deadline_seconds` are from now; the `reason` goes on
        record."""
        check_submittable(workload)
        answer = self.ask(
            {
                "do": "submit",
                "workload": workload.name,
                "tasks": [to_json(task) for task in workload.tasks],
                "priority": priority,
                "deadline_seconds": None if deadline_seconds is None else time.time() + deadline_seconds,
                "entity": entity,
                "reason": reason,
            }
        )
        return list(answer["tasks"])

    def list(self) -> list[dict[str, Any]]:
        """Every task: where it stands, why it waits, when it should start and end, its metrics and parameters."""
        return list(self.ask({"do": "list"})["tasks"])

    def wait(self, *tasks: str, timeout_seconds: float | None = None) -> Result:
        """Wait until these tasks have ended, or all there are; gives what the store holds then. Raises `TimeoutError`
        where that takes longer than `timeout_seconds`."""
        due = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while left := self._unended_now(tasks):
            if due is not None and time.monotonic() > due:
                raise TimeoutError(f"tasks must have ended within {timeout_seconds:g} s; {', '.join(left)} have not.")
            time.sleep(POLL_SECONDS)
        return open_result(self._store)

    def _unended_now(self, tasks: tuple[str, ...]) -> Sequence[str]:
        try:
            rows = {row["task"]: row["status"] for row in self.list()}
        except StoreError:  # a run ends with its last task; what it leaves says whether that was so
            rows = {task.name: task.status for task in open_result(self._store).tasks}
            if any(rows.get(task) not in ENDED for task in tasks or rows):
                raise
        if strange := [task for task in tasks if task not in rows]:
            raise InvalidWorkload(f"the task must be one of {list(rows)}, got {strange[0]!r}.")
        return [task for task in tasks or rows if rows[task] not in ENDED]

    def pause(self, task: str) -> str:
        """Save a task and keep it out of plans until it is resumed."""
        return self._told({"do": "pause", "task": task})

    def resume(self, task: str) -> str:
        """Let a paused task go on; try again one that failed or was cancelled."""
        return self._told({"do": "resume", "task": task})

    def cancel(self, task: str) -> str:
        """Save a task and run it no more."""
        return self._told({"do": "cancel", "task": task})

    def priority(self, task: str, priority: float) -> str:
        """Let a task count more or less than others."""
        return self._told({"do": "priority", "task": task, "priority": priority})

    def deadline(self, task: str, seconds: float | None) -> str:
        """Say in how many seconds from now a task is to have ended; None: by no time."""
        due = None if seconds is None else time.time() + seconds
        return self._told({"do": "deadline", "task": task, "deadline_seconds": due})

    def clone(self, task: str, *, warm: bool, name: str | None = None, **parameters: Any) -> str:
        """Begin a copy of a task with changed parameters, with the weights it last saved if `warm`; its name."""
        request = {"do": "clone", "task": task, "parameters": parameters, "warm": warm, "name": name}
        return str(self.ask(request)["task"])

    def stop(self) -> str:
        """Ask the controller to save everything and stop."""
        return self._told({"do": "stop", "reason": f"asked for by {self._asked_by or 'a client'}"})

    def _told(self, request: dict[str, Any]) -> str:
        return str(self.ask(request)["done"])

    def ask(self, request: dict[str, Any]) -> Mapping[str, Any]:
        """Send one request and give the answer."""
        who = {"asked_by": self._asked_by} if self._asked_by else {}
        answer = ask(self._store, {**request, **who}, patience_seconds=self._patience_seconds)
        if "error" in answer:
            raise DovetailError(answer["error"])
        return answer


def connect(store: str | Path = ".dovetail") -> Client:
    """The daemon, or another controller, that runs on a store: submit, list, wait, pause, resume, cancel.

    >>> connect("nowhere")
    Traceback (most recent call last):
    dovetail.vocabulary.errors.StoreError: a controller must be running on nowhere to take commands; none is. \
Start one: dovetail daemon, or dovetail run.
    """
    client = Client(store)
    client.ask({"do": "status"})
    return client


def check_submittable(workload: Workload) -> None:
    """Refuse a workload that wants something of the whole: a daemon's tasks are many workloads'."""
    if workload.halving is not None:
        raise InvalidWorkload(
            f"a daemon's tasks come and go, so that they cannot be halved; {workload.name!r} is to be. "
            f"Use 'dovetail run', or leave out halving."
        )
    names = ("weights", "deadlines", "techniques", "device_memory_bytes", "allow")
    of_whole = [name for name in names if getattr(workload, name)]
    of_whole += ["objective"] if workload.objective != "makespan" else []
    if of_whole:
        raise InvalidWorkload(
            f"a daemon's tasks share what it was started with; {workload.name!r} has {', '.join(of_whole)} of its "
            f"own. Start the daemon with --objective, --techniques, --device-memory or --allow, submit with "
            f"--priority or --deadline, or use 'dovetail run'."
        )
