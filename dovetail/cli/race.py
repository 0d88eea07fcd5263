"""`dovetail race`: contestants to a target by the clock; a table, JSON, a page, and exports."""

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.answering import (
    FAILED,
    HOME,
    STOPPED,
    DeviceMemoryOption,
    JsonOption,
    StoreOption,
    TechniquesOption,
    answering,
    figures,
    say,
)
from dovetail.verbs.console import Console, plain
from dovetail.vocabulary import DovetailError, TrainingError
from dovetail.vocabulary.redact import Redactor

if TYPE_CHECKING:
    from dovetail.metrics.race.outcome import RaceResult

app = typer.Typer()


@app.command()
def race(
    workload: Annotated[
        str, typer.Argument(help="A Python file or module with a workload: sweep.py, package.sweep, or sweep.py:name.")
    ],
    until: Annotated[
        str | None,
        typer.Option(
            help="The target that ends a run: 'accuracy>=0.94', 'loss<=2.1'. Without it, that of the workload's tasks."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many runs each contestant has, with seeds from 0 on. Without it, the workload's own seeds, or 5."
        ),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="The contestant that others are compared with. Without it, the first one.")
    ] = "",
    clock: Annotated[
        str,
        typer.Option(
            help="The clock by which the race is won: mlperf, evaluations and checkpoints counted; or dawnbench, not "
            "counted. Both are shown."
        ),
    ] = "mlperf",
    devices: Annotated[
        int | None, typer.Option(help="How many devices each run has. Without it, the fewest that it fits on.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(help="Also write the runs for others: mlperf:DIR or dawnbench:DIR. May be repeated."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="What exports should say that a run cannot know: submission_org=us, global_batch_size=64, author=me. "
            "May be repeated."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write a page with the curves against time to this file."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(help="What an hour of one device costs, by its kind: a100=2.50. May be repeated."),
    ] = None,
    techniques: TechniquesOption = None,
    device_memory: DeviceMemoryOption = None,
    save_seconds: Annotated[
        float, typer.Option(help="How many seconds of training between two checkpoints of a run.")
    ] = 30.0,
    engine: Annotated[
        str, typer.Option(help="Where runs are trained: local, on this machine; or ray, on a Ray cluster.")
    ] = "local",
    address: Annotated[str, typer.Option(help="Address of the Ray cluster: host:port, auto or local.")] = "auto",
    store: StoreOption = HOME,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Race from the first step again; remove what the store has of these runs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Race a workload's tasks to a target by the clock, each with several seeds; stop it and run it again to go on."""
    with answering():
        from dovetail.cli import show
        from dovetail.control import Settings
        from dovetail.describe import load_workload
        from dovetail.verbs.race import race as run_race

        console = Console(stderr=True, quiet=quiet)
        try:
            found = run_race(
                partial(load_workload, workload),
                until=until,
                seeds=seeds,
                reference=reference,
                clock=clock,
                devices=devices,
                export=export or [],
                log=_values(log or []),
                prices=figures(price or [], "--price", "a100=2.50"),
                techniques=techniques,
                device_memory=device_memory,
                settings=Settings(save_every_seconds=save_seconds),
                store=store,
                engine=engine,
                address=address,
                progress=not quiet,
                fresh=fresh,
                before=lambda changes: _print_lines(console, changes.lines()),
            )
        except KeyboardInterrupt as stopped:
            if not hasattr(stopped, "result"):
                raise
            console.print("Stopped before the end; run the same command to go on.")
            raise typer.Exit(STOPPED) from None
        except TrainingError as error:
            say(f"dovetail: {error}", err=True)
            raise typer.Exit(FAILED) from None
        if as_json:
            show.print_json(_record(found))
        else:
            say(found)
        if output is not None:
            from dovetail.web.race_page import write_race

            say(write_race(_record(found), output), err=True)
        if any(run.status == "failed" for contestant in found.contestants for run in contestant.runs):
            raise typer.Exit(FAILED)


def _record(found: "RaceResult") -> Any:
    """A race as plain data, with no secrets of its runs' parameters or of the environment."""
    parameters = (run.task.parameters for contestant in found.contestants for run in contestant.runs)
    return Redactor(parameters, variables=os.environ).record(found.record())


def _values(given: list[str]) -> dict[str, Any]:
    """What `--log` says; what is a number is one.

    >>> _values(["submission_org=us", "global_batch_size=64"])
    {'submission_org': 'us', 'global_batch_size': 64}
    """
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise DovetailError(f"--log must be a key and a value, as in --log submission_org=us, got {text!r}.")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(plain(line), soft_wrap=True)
