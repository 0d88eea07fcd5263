"""`dovetail ui`: the live page of one store or of several, until it is stopped."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.answering import HOME, answering

app = typer.Typer()

StoresOption = Annotated[
    list[Path] | None,
    typer.Option("--store", help="The folder that holds a run's events, checkpoints and logs. May be repeated."),
]


@app.command()
def ui(
    store: StoresOption = None,
    port: Annotated[int, typer.Option(help="The port to listen on; the next free one where it is taken.")] = 7420,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Others than this machine's own are reached by others too.")
    ] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, and let nobody act.")] = False,
    browser: Annotated[bool, typer.Option(help="Open a browser, where there is one.")] = True,
    beside: Annotated[bool, typer.Option("--beside", hidden=True, help="End when the standard input does.")] = False,
) -> None:
    """Serve the live page: every task, device and decision while it happens, and what can be asked of them."""
    with answering():
        from dovetail.web.page_process import serve

        if beside:
            threading.Thread(target=_end_with_input, daemon=True).start()
        serve(store or [HOME], host=host, port=port, read_only=read_only, browser=browser, said=typer.echo)


def _end_with_input() -> None:
    """Whoever started this holds the other end, and lets go of it however it ends."""
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    os.kill(os.getpid(), 15)


@contextlib.contextmanager
def page_beside(store: Path, *, wanted: bool) -> Iterator[None]:
    """The live page in a process of its own, so that it takes none of the controller's time, until this ends."""
    if not wanted:
        yield
        return
    from dovetail.web.page_process import check_installed

    check_installed()
    words = [sys.executable, "-m", "dovetail", "ui", "--beside", "--store", str(store)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=sys.stderr)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
