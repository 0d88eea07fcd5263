"""`dovetail select`: the examples of a training that teach, written to a file, with what was tried."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dovetail.cli.answering import HOME, STOPPED, JsonOption, StoreOption, answering, say
from dovetail.verbs.console import Console, plain
from dovetail.vocabulary import DovetailError, to_json

app = typer.Typer()


@app.command()
def select(
    program: Annotated[str, typer.Argument(help="The program: sweep.py:function or package.module:function.")],
    fraction: Annotated[float, typer.Option(help="Which part of the examples to keep at most: 0.1.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write the choice to.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="maxgrad, el2n or ccs. May be repeated: the best one is taken.")
    ] = None,
    strength: Annotated[
        list[float] | None,
        typer.Option(
            help="Which part of the examples, the hardest, to leave out first; wrong labels are among them. May be "
            "repeated: the best one is taken. 0, 0.05, 0.1, 0.2 and 0.3 where none is given.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="For how many steps each student is trained.")] = 200,
    rounds: Annotated[int, typer.Option(help="In how many rounds maxgrad chooses, a student each.")] = 10,
    splits: Annotated[int, typer.Option(help="On how many validation splits ways to choose are compared.")] = 5,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="A parameter of the program, as in width=128. May be repeated."),
    ] = None,
    store: StoreOption = HOME,
    engine: Annotated[
        str, typer.Option(help="Where students are trained: local, on this machine; or ray, on a Ray cluster.")
    ] = "local",
    address: Annotated[str, typer.Option(help="Address of the Ray cluster: host:port, auto, or local.")] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Train all students again.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the examples of a training that teach; stop it and run it again to go on."""
    with answering():
        from dovetail.verbs import select_examples

        try:
            found = select_examples.select(
                program,
                fraction=fraction,
                method=method or "maxgrad",
                strengths=strength or select_examples.STRENGTHS,
                steps=steps,
                rounds=rounds,
                splits=splits,
                store=store,
                engine=engine,
                address=address,
                progress=not quiet,
                fresh=fresh,
                **_parameters(parameter or []),
            )
        except KeyboardInterrupt as stopped:
            if not hasattr(stopped, "result"):
                raise
            say("Stopped before the end; run the same command to go on.", err=True)
            raise typer.Exit(STOPPED) from None
        if output is not None:
            say(f"written to {found.save(output)}", err=True)
        show_selection(found, as_json=as_json)


def _parameters(given: list[str]) -> dict[str, Any]:
    """What `--parameter` says: values are JSON where they can be read so, and text otherwise."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals):
            raise DovetailError(f"--parameter must be a name and a value, as in width=128, got {text!r}.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def show_selection(selection: Any, *, as_json: bool = False) -> None:
    """Print what was tried, the best first, and what was chosen."""
    from dovetail.cli.show import print_json
    from dovetail.selection.record import Selection

    assert isinstance(selection, Selection)
    if as_json:
        print_json(to_json(selection))
        return
    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("method", "hardest dropped", f"validation {selection.metric}", "±"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for each in sorted(selection.trials, key=lambda one: one.mean, reverse=selection.metric != "loss"):
        chosen = (each.method, each.strength) == (selection.method, selection.strength)
        name = f"{each.method}  ← chosen" if chosen else each.method
        table.add_row(plain(name), f"{each.strength:.0%}", f"{each.mean:.4f}", f"{each.error:.4f}")
    console.print(table)
    console.print(plain(str(selection)), soft_wrap=True)
