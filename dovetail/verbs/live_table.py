"""The live table: per-task bars, rates, time left. In a terminal and in a notebook it redraws; elsewhere it writes
lines."""

import contextlib
import time
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dovetail.control import Controller
from dovetail.metrics.progress import Progress
from dovetail.verbs.console import Console, plain
from dovetail.verbs.notebook_table import NotebookTable, in_notebook
from dovetail.verbs.progress_lines import ProgressLines, describe_progress, describe_whole, order_tasks
from dovetail.vocabulary import Event, TaskId
from dovetail.vocabulary.events import Warned

REDRAW_SECONDS = 0.25
ROWS = 24
_COLOURS = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "halved": "yellow",
    "pruned": "yellow",
    "cancelled": "yellow",
}


class LiveTable:
    """An observer of a controller; use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._notebook: NotebookTable | None = None
        self._drawn_at = 0.0
        self._lines = ProgressLines(self._write)

    def __enter__(self) -> "LiveTable":
        if in_notebook():
            self._notebook = NotebookTable()
        elif self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def __call__(self, controller: Controller) -> None:
        """Show where `controller` stands, a few times a second at most. Training goes on whoever watches: a terminal
        that is gone is no reason to end it."""
        with contextlib.suppress(OSError):
            self._show(controller)

    def hear(self, events: list[Event]) -> None:
        """Tell at once what the run as a whole is warned of; a task's own warnings are in its result."""
        with contextlib.suppress(OSError):
            for event in events:
                if isinstance(event, Warned) and not event.task:
                    self._write(f"warning: {event.message}")

    def _show(self, controller: Controller) -> None:
        if self._live is None and self._notebook is None:
            self._lines.show(controller)
        elif time.monotonic() - self._drawn_at > REDRAW_SECONDS or controller.phase in ("done", "stopped"):
            self._drawn_at = time.monotonic()
            if self._notebook is not None:
                self._notebook.update(controller)
            elif self._live is not None:
                self._live.update(_picture(controller), refresh=True)

    def _write(self, line: str) -> None:
        if self._notebook is not None:
            self._notebook.warn(line)
        else:
            self._console.print(plain(line), soft_wrap=True)


def _picture(controller: Controller) -> Group:
    progress = order_tasks(controller)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("task", "", "step", "steps/s", "left", "metrics"):
        table.add_column(name, no_wrap=True)
    for identity, one in progress[:ROWS]:
        table.add_row(*_row(controller, identity, one))
    if len(progress) > ROWS:
        table.add_row(Text(f"and {len(progress) - ROWS} more", style="dim"))
    return Group(table, Text(describe_whole(controller), style="dim"))


def _row(controller: Controller, identity: TaskId, one: Progress) -> tuple[RenderableType, ...]:
    until = one.spans[-1].until_step if one.spans else 0
    bar = ProgressBar(total=max(until, 1), completed=one.step, width=24) if until else Text("")
    return (
        plain(controller.name_of(identity), style=_COLOURS.get(one.status, "")),
        bar if one.status == "running" else Text(one.status, style=_COLOURS.get(one.status, "dim")),
        *map(plain, describe_progress(one)),
    )
