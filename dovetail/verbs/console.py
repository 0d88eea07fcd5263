"""The console that commands write to."""

import os

import rich.console


class Console(rich.console.Console):
    """One that falls silent when nobody reads it any more: `dovetail run sweep.py | head` still trains all there is,
    and ends with the exit code of that.

    >>> Console(quiet=True).print("nobody sees this")
    """

    def on_broken_pipe(self) -> None:
        """Whoever read this has left; what Python still holds for them goes nowhere."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
