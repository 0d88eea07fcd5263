"""`dovetail logs`: what a task's program has printed, attempt by attempt, and how each ended."""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from dovetail.cli.answering import say
from dovetail.engines.base import order_log
from dovetail.metrics.progress import ENDED, Progress, fold
from dovetail.metrics.task_addresses import match_tasks
from dovetail.store import Store, holder
from dovetail.vocabulary import Event, Task, TaskId
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStarted,
    AttemptStopped,
    TaskChanged,
    TaskFailed,
    TaskFinished,
    TaskVanished,
)
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.request_events import TaskRestarted
from dovetail.vocabulary.user_text import escape_controls_but_colours

LOOK_SECONDS = 0.5
_READ_BYTES = 1 << 16


def print_logs(words: list[str], *, store: Path, follow: bool) -> None:
    """Print what the tasks that these words mean have printed; with `follow`, until all of them have ended, or are gone
    from their workload, or no controller runs that could go on with them."""
    with Store(store) as opened:
        found = list({task.identity: task for word in words for task in _find(word, opened)}.values())
        readers = [TaskLog(task, store, named=len(found) > 1) for task in found]
        with contextlib.suppress(KeyboardInterrupt):
            _print_news(readers, opened)
            if follow:
                _follow(readers, opened, store)


def _find(word: str, store: Store) -> list[Task]:
    """The tasks that a word means: where there are others, none that an edit has replaced or that has left its file."""
    known = {task.identity: task for _, task in store.tasks()}
    rows = [{"task": t.name, "id": i, "parameters": dict(t.parameters)} for i, t in known.items()]
    found = [known[row["id"]] for row in match_tasks([word], rows)]
    progress = [fold(event for _, event in store.events(task=task.identity)) for task in found]
    present = [
        task for task, each in zip(found, progress, strict=True) if not any(one.vanished for one in each.values())
    ]
    return present or found


def _print_news(readers: "list[TaskLog]", store: Store) -> None:
    for reader in readers:
        for text in reader.read(store):
            typer.echo(escape_controls_but_colours(text), nl=False)


def _follow(readers: "list[TaskLog]", store: Store, home: Path) -> None:
    """Print what comes, until all is over or nothing runs any more."""
    running = True
    while running and not all(reader.is_over for reader in readers):
        time.sleep(LOOK_SECONDS)
        running = holder(home) is not None  # asked before the last events are read, so that none is missed
        _print_news(readers, store)
    for reader in readers:
        if not reader.is_over:
            say(reader.waits_for_a_run(), err=True)


class TaskLog:
    """What one task has printed and come to, read from where the last reading ended."""

    def __init__(self, task: Task, home: Path, *, named: bool = False) -> None:
        self._task, self._home, self._named = task, home, named
        self._redact = Redactor([task.parameters], variables=os.environ)
        self._after, self._progress = 0, dict[TaskId, Progress]()
        self._file: Path | None = None
        self._position = 0
        self._at_line_start = True

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        one = self._progress.get(self._task.identity)
        return one is not None and (one.status in ENDED or one.vanished)

    def waits_for_a_run(self) -> str:
        """That the task has not ended, and what to do about it."""
        one = self._progress.get(self._task.identity, Progress(task=self._task.identity))
        name = self._redact(self._task.name)
        return (
            f"{name} has not ended, it is at step {one.step}; nothing runs on {self._home} now. Run its workload again "
            f"to go on."
        )

    def read(self, store: Store) -> Iterator[str]:
        """What is new since this was last asked for."""
        for number, event in store.events(task=self._task.identity, after=self._after):
            self._after = number
            fold([event], self._progress)
            if said := self._redact(self._describe_event(event)):
                yield from self._read_printed()  # all that came before it
                yield f"{'' if self._at_line_start else chr(10)}{said}\n"
                self._at_line_start = True
            if isinstance(event, AttemptStarted):
                self._file, self._position = order_log(self._home / "logs", event.placement), 0
        yield from self._read_printed()

    def _read_printed(self) -> Iterator[str]:
        if self._file is None:
            return
        with contextlib.suppress(OSError), open(self._file, "rb") as file:
            file.seek(self._position)
            while content := file.read(_READ_BYTES):
                if len(content) == _READ_BYTES:  # more may follow: lines, letters and secrets stay whole
                    content = content[: content.rfind(b"\n") + 1] or content
                self._position += len(content)
                file.seek(self._position)
                text = content.decode(errors="replace")
                self._at_line_start = text.endswith("\n")
                yield self._redact(text)

    def _describe_event(self, event: Event) -> str:
        name = f"{self._task.name}, " if self._named else ""
        head = f"── {name}attempt {event.attempt}" if event.attempt else f"── {name}as it was built or measured,"
        match event:
            case AttemptStarted(devices=devices, step=step, option=option):
                at = datetime.datetime.fromtimestamp(event.at_seconds).strftime("%Y-%m-%d %H:%M:%S")
                gang = len(option.families) if option is not None else 1
                shared = f", one of {gang} at once, with the output of all" if gang > 1 else ""
                return f"{head} at {at} on {', '.join(devices)}{shared}, from step {step} ──"
            case AttemptStopped(step=step, reason=reason) | TaskFinished(step=step, reason=reason):
                word = "finished" if isinstance(event, TaskFinished) else "stopped"
                return f"{head} {word} at step {step}{f': {reason}' if reason else ''} ──"
            case AttemptLost(reason=reason, log=log) | TaskFailed(reason=reason, log=log):
                word = "failed" if isinstance(event, TaskFailed) else "lost"
                # Of a lost worker, the end of what it printed stands above already.
                return f"{head} {word}: {reason} ──" + (f"\n{log.rstrip()}" if word == "failed" and log else "")
            case TaskRestarted():
                return f"── {name}trained anew ──"
            case TaskChanged():
                return f"── {name}edited since: another task of this name has taken its place ──"
            case TaskVanished():
                return f"── {name}no longer in its workload; kept in the store ──"
        return ""
