"""What all commands share: their common options, how refusals are told, exit codes.

Exit codes: 0 all is well; 1 some task failed; 2 the input cannot be; 3 another controller holds the store;
130 stopped before the end, run again to go on.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.vocabulary import DovetailError, StoreBusy

StoreOption = Annotated[Path, typer.Option("--store", help="Where events, checkpoints and logs are kept.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
HOME = Path(".dovetail")

FAILED, INVALID, BUSY, STOPPED = 1, 2, 3, 130


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """What Dovetail refuses becomes one line on the error stream and an exit code."""
    try:
        yield
    except DovetailError as error:
        typer.echo(f"dovetail: {error}", err=True)
        raise typer.Exit(BUSY if isinstance(error, StoreBusy) else INVALID) from None
    except KeyboardInterrupt:
        typer.echo("dovetail: ended at once; what was saved is safe.", err=True)
        raise typer.Exit(STOPPED) from None
    except BrokenPipeError:
        sys.exit(0)


def asked(store: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the store's controller; what it refuses is raised."""
    from dovetail.control import ask

    answer = ask(store, request)
    if "error" in answer:
        raise DovetailError(answer["error"])
    return answer
