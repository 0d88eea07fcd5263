"""The console that commands write to."""

import os
from typing import Any

import rich.console

# As wide as any table gets: what reads a file or a pipe has no edge at which words would have to be cut.
_UNBOUNDED = 10_000
# As wide as pictures are where nothing says how wide they may be.
_PICTURE = 100


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
