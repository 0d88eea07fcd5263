"""`dovetail why`: what is behind failures, slowness and bad scores of tasks, behind the outliers of a file, or behind a
change between two."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli.answering import HOME, JsonOption, StoreOption, answering, say
from dovetail.cli.drift import (
    DataParameterOption,
    LabelOption,
    OnDriftOption,
    PredictionOption,
    ProbabilityOption,
    answer_drift,
    names,
)
from dovetail.vocabulary import DovetailError

app = typer.Typer()


@app.command()
def why(
    context: typer.Context,
    table: Annotated[
        Path | None,
        typer.Argument(help="A file of rows (.parquet, .csv, .arrow, .jsonl), with --outliers. Without it, the store."),
    ] = None,
    current: Annotated[
        Path | None,
        typer.Argument(help="The rows that came later: what drifted, or, with --measure, who changed its mean or sum."),
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
    workload: Annotated[
        str | None, typer.Option(help="Only the tasks of the workload of this name; for --on-drift, what to submit.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="Explain how this column changed: its mean, or its sum with --ratio sum_shift.")
    ] = None,
    label: LabelOption = None,
    prediction: PredictionOption = None,
    probability: ProbabilityOption = None,
    on_drift: OnDriftOption = None,
    data_parameter: DataParameterOption = "data",
    ratio: Annotated[
        str | None, typer.Option(help="risk (as a rule), global or prevalence; of a measure, mean_shift or sum_shift.")
    ] = None,
    least_ratio: Annotated[
        float | None, typer.Option(help="How many times as likely at least: 1.5, and 1 of a measure.")
    ] = None,
    least_support: Annotated[float, typer.Option(help="Which part of the outliers at least.")] = 0.05,
    order: Annotated[int | None, typer.Option(help="Of how many attributes together at most.")] = None,
    show: Annotated[str, typer.Option(help="short, growing or minimal; see docs/why.md.")] = "short",
    store: StoreOption = HOME,
    as_json: JsonOption = False,
) -> None:
    """Say which combinations of parameters, devices or data are behind what went wrong."""
    with answering():
        _check_given(_named(context))
        if current is not None and measure is None:
            assert table is not None
            answer_drift(
                table,
                current,
                on_drift=on_drift,
                workload=workload,
                data_parameter=data_parameter,
                store=store,
                as_json=as_json,
                asked_by="dovetail why",
                attributes=names(on),
                label=label,
                prediction=prediction,
                probability=probability,
                **({"order": order} if order else {}),
            )
            return
        from dovetail.verbs import why as verb
        from dovetail.watch.criteria import Criteria, usual_least_ratio

        ratio = ratio or ("risk" if measure is None else "mean_shift")
        criteria = Criteria(
            ratio=ratio,
            least_ratio=usual_least_ratio(ratio) if least_ratio is None else least_ratio,
            least_support=least_support,
            order=order,
            show=show,
        )
        of_rows: dict[str, Any] = {"on": names(on), "ranges": names(ranges) or (), "criteria": criteria}
        if current is not None and measure is not None:
            assert table is not None
            found = [verb.why_windows(table, current, measure=measure, **of_rows)]
        elif table is not None:
            found = [verb.why_file(table, outliers=outliers or "", measure=measure, **of_rows)]
        else:
            from dovetail.store import Store

            with Store(store) as opened:
                found = verb.why_store(
                    opened,
                    workload=workload,
                    metric=metric,
                    worst=worst,
                    best=best,
                    where=where,
                    between=between or (),
                    on=names(on),
                    criteria=criteria,
                )
        _show(found, as_json=as_json)


_OF_TASKS = ("metric", "worst", "best", "where", "between")
_OF_DRIFT = ("on-drift", "data-parameter", "label", "prediction", "probability")
_OF_RATIOS = ("ratio", "least-ratio", "least-support", "show")


def _named(context: typer.Context) -> set[str]:
    """The options and arguments that were given."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name.replace("_", "-") for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _check_given(given: set[str]) -> None:
    """Refuse options that have nothing to say where they are given: of two files, of one, and of the store."""
    if "current" in given:
        _refuse(
            given,
            {"outliers", *_OF_TASKS},
            "must not come with two files of rows: the second is compared with the first as a whole",
        )
        if "measure" not in given:
            _refuse(given, {*_OF_RATIOS, "ranges"}, "must come with --measure where two files of rows are compared")
            return
    _refuse(given, _OF_DRIFT, "must come with two files of rows to compare, and without --measure")
    if "table" in given:
        if not given & {"current", "outliers"}:
            raise DovetailError(
                "a file of rows must come with --outliers 'power_drain > 0.9', which says what to explain."
            )
        _refuse(given, _OF_TASKS, "asks about the store's tasks; of a file of rows, ask with --outliers")
        _refuse(given, {"workload"}, "names tasks of the store, or what to submit with --on-drift; leave it out")
        return
    _refuse(given, {"outliers", "measure"}, "must come with a file of rows; of the store's tasks, ask with --where")
    _refuse(given, {"ranges"}, "must come with a file of rows; of tasks, all parameters of numbers are amounts")
    if len(asked := sorted(given & {"metric", "where", "between"})) > 1:
        raise DovetailError(
            f"one question must be asked at a time, got --{' and --'.join(asked)}. Leave out all but one."
        )
    if (ends := given & {"best", "worst"}) and "metric" not in given:
        raise DovetailError(f"--{min(ends)} must come with the --metric that it goes by, such as --metric accuracy.")


def _refuse(given: set[str], names: Collection[str], must: str) -> None:
    if wrong := sorted(given & set(names)):
        raise DovetailError(f"--{wrong[0]} {must}.")


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
