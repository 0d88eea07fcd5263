"""`dovetail feed`: what a task's input pipeline could give, and what keeps it from more. Trains nothing."""

import math
from typing import Annotated

import typer
from rich.table import Table

from dovetail.cli.answering import JsonOption, answering
from dovetail.cli.show import print_json
from dovetail.verbs.console import Console, plain
from dovetail.verbs.inspect_feed import DEFAULT_SECONDS, FeedReport
from dovetail.vocabulary import DovetailError, to_json
from dovetail.vocabulary.units import parse_bytes, show_bytes, show_number

app = typer.Typer()


@app.command()
def feed(
    workload: Annotated[
        str, typer.Argument(help="A Python file or module with a workload: sweep.py, package.sweep, or sweep.py:name.")
    ],
    task: Annotated[str | None, typer.Option(help="The task whose feed is measured; else the first one.")] = None,
    cores: Annotated[
        float | None, typer.Option(help="Plan for so many cores instead of those of this machine.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="How much the feed may hold, such as '1 GiB'; 128 MiB a core without this, at least 256 MiB."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="For how many seconds to read, once workers are chosen.")] = (
        DEFAULT_SECONDS
    ),
    consumer: Annotated[
        bool, typer.Option(help="Also take a few steps with one batch, to know how many the model takes a second.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Measure a task's input pipeline without training: each stage, which one is the wall, and what would help."""
    with answering():
        from dovetail.describe import load_workload
        from dovetail.verbs.inspect_feed import inspect_feed

        found = inspect_feed(
            load_workload(workload),
            task=task,
            cores=_positive(cores, "--cores"),
            budget_bytes=_bytes(budget) if budget else None,
            seconds=_positive(seconds, "--seconds") or DEFAULT_SECONDS,
            consumer=consumer,
        )
        show_feed(found, as_json=as_json)


def _positive(value: float | None, option: str) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise DovetailError(f"{option} must be a number above 0, got {value:g}.")
    return value


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise DovetailError(f"--budget: {error}") from None


def show_feed(report: FeedReport, *, as_json: bool = False) -> None:
    """Print a feed's stages, its wall, and what would help."""
    if as_json:
        print_json(to_json(report))
        return
    console = Console()
    console.print(plain(f"{report.task}: {report.definition}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "one worker", "workers", "busy", "holds"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in report.stages:
        alone = f"{stage.rate_alone:,.0f}/s" if math.isfinite(stage.rate_alone) else ""
        workers = f"{stage.workers} × {stage.worker}"
        name = f"{stage.name}  ← the wall" if stage.name == report.wall else stage.name
        table.add_row(plain(name), alone, workers, f"{stage.busy_share:.0%}", show_bytes(stage.held_bytes))
    console.print(table)
    for line in _lines(report):
        console.print(plain(line), soft_wrap=True)


def _lines(report: FeedReport) -> list[str]:
    """The lines below the table of stages: the feed's rate, what holds it back, and what would help."""
    needs = report.consumer_per_second
    found = [
        f"gives {show_number(report.batches_per_second)} batches a second "
        f"({show_number(report.predicted_per_second)} predicted) on {report.cores:g} cores within "
        f"{show_bytes(report.budget_bytes)}"
    ]
    if needs is not None:
        found.append(f"the model takes {show_number(needs)} batches a second")
    found += [f"- {reason}" for reason in (*report.reasons, *report.notes)]
    found += ["what would help:", *(f"- {advice}" for advice in report.advice)] if report.advice else []
    return found
