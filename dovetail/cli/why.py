"""`dovetail why`: what is behind failures, slowness and bad scores of tasks, or behind the outliers of a file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli.answering import HOME, JsonOption, StoreOption, answering, say
from dovetail.vocabulary import DovetailError

app = typer.Typer()


@app.command()
def why(
    table: Annotated[
        Path | None,
        typer.Argument(help="A file of rows (.parquet, .csv, .arrow, .jsonl), with --outliers. Without it, the store."),
    ] = None,
    outliers: Annotated[
        str | None, typer.Option(help="Which rows of the file to explain: 'power_drain > 0.9 and state == \"CA\"'.")
    ] = None,
    on: Annotated[
        list[str] | None, typer.Option(help="By which attributes to explain: device,firmware. May be repeated.")
    ] = None,
    ranges: Annotated[
        list[str] | None, typer.Option(help="Columns of a file whose whole numbers are amounts: age,year.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="The metric that --worst and --best go by.")] = None,
    worst: Annotated[str | None, typer.Option(help="Explain the tasks with the worst values: 10%, or 5.")] = None,
    best: Annotated[str | None, typer.Option(help="Explain the tasks with the best values: 10%, or 5.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Explain the tasks of which a parameter or last metric is so: 'train/loss>3'.")
    ] = None,
    between: Annotated[
        tuple[str, str] | None, typer.Option(help="How the tasks of the second workload differ from the first's.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Only the tasks of the workload of this name.")] = None,
    ratio: Annotated[str, typer.Option(help="How likelihood is compared: risk, global or prevalence.")] = "risk",
    least_ratio: Annotated[float, typer.Option(help="How many times as likely at least.")] = 1.5,
    least_support: Annotated[float, typer.Option(help="Which part of the outliers at least.")] = 0.05,
    order: Annotated[int | None, typer.Option(help="Of how many attributes together at most.")] = None,
    show: Annotated[str, typer.Option(help="short, growing or minimal; see docs/why.md.")] = "short",
    store: StoreOption = HOME,
    as_json: JsonOption = False,
) -> None:
    """Say which combinations of parameters, devices or data are behind what went wrong."""
    with answering():
        from dovetail.verbs import why as verb
        from dovetail.watch.criteria import Criteria

        criteria = Criteria(ratio=ratio, least_ratio=least_ratio, least_support=least_support, order=order, show=show)
        of_store: dict[str, Any] = {
            "metric": metric,
            "worst": worst,
            "best": best,
            "where": where,
            "between": between or (),
        }
        if table is not None:
            _check_file(outliers, of_store)
            found = [
                verb.why_file(
                    table, outliers=outliers or "", on=_names(on), ranges=_names(ranges) or (), criteria=criteria
                )
            ]
        else:
            if outliers is not None:
                raise DovetailError("--outliers must come with a file of rows; of the store's tasks, ask with --where.")
            from dovetail.store import Store

            with Store(store) as opened:
                found = verb.why_store(opened, workload=workload, **of_store, on=_names(on), criteria=criteria)
        _show(found, as_json=as_json)


def _check_file(outliers: str | None, of_store: dict[str, Any]) -> None:
    if outliers is None:
        raise DovetailError("a file of rows must come with --outliers 'power_drain > 0.9', which says what to explain.")
    if given := [name for name, value in of_store.items() if value]:
        raise DovetailError(f"--{given[0]} asks about the store's tasks; of a file of rows, ask with --outliers.")


def _names(given: list[str] | None) -> list[str] | None:
    return [name.strip() for each in given for name in each.split(",") if name.strip()] if given else None


def _show(found: Any, *, as_json: bool) -> None:
    if as_json:
        from dovetail.cli import show

        show.print_json([each.record() for each in found])
        return
    if not found:
        say("Nothing to explain: no two tasks failed, diverged, were halved early or ran slower than predicted.")
    for each in found:
        say(each.question[0].upper() + each.question[1:])
        for line in [*each.lines(), *(f"note: {note}" for note in each.found.notes)]:
            say(f"  {line}")
