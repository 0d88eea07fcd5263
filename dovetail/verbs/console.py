"""The console that commands write to."""

import os
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

from dovetail.vocabulary.user_text import escape_controls

# As wide as any table gets: what reads a file or a pipe has no edge at which words would have to be cut.
_UNBOUNDED = 10_000
# As wide as pictures are where nothing says how wide they may be.
_PICTURE = 100


def plain(text: str, *, style: str = "") -> Text:
    """Text to be shown as it is: brackets in a task's name are no markup, and control characters steer no terminal."""
    return Text(escape_controls(text), style=style)


class Console(rich.console.Console):
    """One that cuts nothing where there is no terminal, unless `COLUMNS` says how wide that is; and that falls silent
    when nobody reads it any more: `dovetail run sweep.py | head` still trains all there is, and ends with the exit code
    of that.

    >>> import io
    >>> Console(file=io.StringIO(), width=70).picture_width
    70
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if options.get("width") is None and not self.is_terminal and not os.environ.get("COLUMNS"):
            self.width = _UNBOUNDED

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is to be written, in which no control character is left but rich's own."""
        for part in super().render(renderable, options):
            shown = part.text if part.control else escape_controls(part.text)
            yield part if shown == part.text else Segment(shown, part.style)

    @property
    def picture_width(self) -> int:
        """How wide to draw what fills all the width there is."""
        return self.width if self.width < _UNBOUNDED else _PICTURE

    def on_broken_pipe(self) -> None:
        """Whoever read this has left; what Python still holds for them goes nowhere."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
