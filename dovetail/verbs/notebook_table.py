"""The live table in a notebook: one output that changes in place.

Rich's own display in notebooks needs widgets, or appends an output for each line; IPython's `display_id` needs neither.
"""

import sys
from typing import Any

from dovetail.control import Controller
from dovetail.metrics.progress import Progress
from dovetail.verbs.progress_lines import describe_progress, describe_whole, order_tasks
from dovetail.vocabulary.notebook_html import Markup, html_lines, html_table

ROWS = 24
# The last so many warnings stay below the table.
WARNINGS = 5


def in_notebook() -> bool:
    """Whether this process is a kernel whose front end shows HTML: Jupyter's, Colab's, an editor's."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class NotebookTable:
    """Shows where a controller stands, in the output of the cell that runs it."""

    def __init__(self) -> None:
        from IPython.display import display

        self._warnings: list[str] = []
        self._handle: Any = display(  # type: ignore[no-untyped-call]
            _LiveHtml("", "nothing has begun yet"), display_id=True
        )

    def update(self, controller: Controller) -> None:
        """Show it as it stands now."""
        rows = [(controller.name_of(task), _bar(one), *describe_progress(one)) for task, one in order_tasks(controller)]
        table = html_table(("task", "", "step", "steps/s", "left", "metrics"), rows, most=ROWS)
        lines = [describe_whole(controller), *self._warnings[-WARNINGS:]]
        if controller.phase == "stopped":
            lines.append("everything is saved; run it again to go on")
        self._handle.update(_LiveHtml(table + html_lines(lines), "\n".join(lines)))

    def warn(self, line: str) -> None:
        """Have a line below the table, from its next update on."""
        self._warnings.append(line)


class _LiveHtml:
    """What IPython asks for its HTML, and for words where HTML is not shown."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text


def _bar(one: Progress) -> object:
    until = one.spans[-1].until_step if one.spans else 0
    if one.status != "running" or not until:
        return one.status
    return Markup(f'<progress value="{one.step}" max="{until}"></progress>')
