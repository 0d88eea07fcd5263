"""`dovetail logs`: what a task's program has printed, attempt by attempt, and how each ended."""

import contextlib
import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from dovetail.engines.base import order_log
from dovetail.metrics.progress import ENDED, Progress, fold
from dovetail.metrics.task_addresses import match_tasks
from dovetail.store import Store
from dovetail.vocabulary import Event, Task, TaskId
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStarted,
    AttemptStopped,
    TaskFailed,
    TaskFinished,
    TaskRestarted,
)

LOOK_SECONDS = 0.5


def print_logs(words: list[str], *, store: Path, follow: bool) -> None:
    """Print what the tasks that these words mean have printed; with `follow`, until all of them have ended."""
    with Store(store) as opened:
        known = {task.identity: task for _, task in opened.tasks()}
        rows = [{"task": t.name, "id": i, "parameters": dict(t.parameters)} for i, t in known.items()]
        found = [known[row["id"]] for row in match_tasks(words, rows)]
        readers = [TaskLog(task, store, named=len(found) > 1) for task in found]
        with contextlib.suppress(KeyboardInterrupt):
            while _print_news(readers, opened) and follow:
                time.sleep(LOOK_SECONDS)


def _print_news(readers: "list[TaskLog]", store: Store) -> bool:
    """Print what is new; whether more may come."""
    for reader in readers:
        for text in reader.read(store):
            typer.echo(text, nl=False)
    return not all(reader.has_ended for reader in readers)


class TaskLog:
    """What one task has printed and come to, read from where the last reading ended."""

    def __init__(self, task: Task, home: Path, *, named: bool = False) -> None:
        self._task, self._home, self._named = task, home, named
        self._after, self._progress = 0, dict[TaskId, Progress]()
        self._file: Path | None = None
        self._position = 0
        self._at_line_start = True

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        one = self._progress.get(self._task.identity)
        return one is not None and one.status in ENDED

    def read(self, store: Store) -> Iterator[str]:
        """What is new since this was last asked for."""
        for number, event in store.events(task=self._task.identity, after=self._after):
            self._after = number
            fold([event], self._progress)
            if said := self._said(event):
                yield from self._printed()  # all that came before it
                yield f"{'' if self._at_line_start else chr(10)}{said}\n"
                self._at_line_start = True
            if isinstance(event, AttemptStarted):
                self._file, self._position = order_log(self._home / "logs", event.placement), 0
        yield from self._printed()

    def _printed(self) -> Iterator[str]:
        if self._file is None:
            return
        with contextlib.suppress(OSError), open(self._file, "rb") as file:
            file.seek(self._position)
            while content := file.read(1 << 16):
                self._position = file.tell()
                text = content.decode(errors="replace")
                self._at_line_start = text.endswith("\n")
                yield text

    def _said(self, event: Event) -> str:
        name = f"{self._task.name}, " if self._named else ""
        head = f"── {name}attempt {event.attempt}" if event.attempt else f"── {name}as it was built or measured,"
        match event:
            case AttemptStarted(devices=devices, step=step):
                at = datetime.datetime.fromtimestamp(event.at_seconds).strftime("%Y-%m-%d %H:%M:%S")
                return f"{head} at {at} on {', '.join(devices)}, from step {step} ──"
            case AttemptStopped(step=step, reason=reason) | TaskFinished(step=step, reason=reason):
                word = "finished" if isinstance(event, TaskFinished) else "stopped"
                return f"{head} {word} at step {step}{f': {reason}' if reason else ''} ──"
            case AttemptLost(reason=reason, log=log) | TaskFailed(reason=reason, log=log):
                word = "failed" if isinstance(event, TaskFailed) else "lost"
                # Of a lost worker, the end of what it printed stands above already.
                return f"{head} {word}: {reason} ──" + (f"\n{log.rstrip()}" if word == "failed" and log else "")
            case TaskRestarted():
                return f"── {name}trained anew ──"
        return ""
