"""`dovetail drift`: what changed between two files of rows, for which combination, and what is to be done about it."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dovetail.cli.answering import HOME, JsonOption, StoreOption, answering, say
from dovetail.verbs.console import Console, plain
from dovetail.vocabulary import DovetailError

app = typer.Typer()
LabelOption = Annotated[str | None, typer.Option(help="Of two files, the column of what a model was to say.")]
PredictionOption = Annotated[str | None, typer.Option(help="Of two files, the column of what it said.")]
ProbabilityOption = Annotated[
    str | None, typer.Option(help="Of two files, the column of the probability it gave the label 1.")
]
OnDriftOption = Annotated[
    str | None, typer.Option(help="What to do where there is drift: retrain, which submits --workload to the daemon.")
]
DataParameterOption = Annotated[
    str, typer.Option(help="For --on-drift retrain: the programs' parameter that is given the file of the new rows.")
]


@app.command()
def drift(
    reference: Annotated[Path, typer.Argument(help="The rows to compare with: .parquet, .csv, .arrow or .jsonl.")],
    current: Annotated[Path, typer.Argument(help="The rows that came later.")],
    on: Annotated[
        list[str] | None,
        typer.Option(help="Attributes by whose combinations to look: region,version. May be repeated."),
    ] = None,
    metrics: Annotated[list[str] | None, typer.Option(help="Columns to compare as numbers. May be repeated.")] = None,
    label: LabelOption = None,
    prediction: PredictionOption = None,
    probability: ProbabilityOption = None,
    order: Annotated[int, typer.Option(help="How many attributes a combination has at most.")] = 3,
    false_alarms: Annotated[
        float, typer.Option(help="In which part of cases without drift anything may be found, at most.")
    ] = 0.05,
    on_drift: OnDriftOption = None,
    workload: Annotated[
        str | None, typer.Option(help="For --on-drift retrain: the workload, as in 'dovetail submit': sweep.py.")
    ] = None,
    data_parameter: DataParameterOption = "data",
    store: StoreOption = HOME,
    as_json: JsonOption = False,
) -> None:
    """Say what changed between two files of rows, and for which combination of attributes; train again if asked to."""
    with answering():
        answer_drift(
            reference,
            current,
            on_drift=on_drift,
            workload=workload,
            data_parameter=data_parameter,
            store=store,
            as_json=as_json,
            attributes=names(on),
            metrics=names(metrics),
            label=label,
            prediction=prediction,
            probability=probability,
            order=order,
            false_alarms=false_alarms,
        )


def answer_drift(
    reference: Path,
    current: Path,
    *,
    on_drift: str | None,
    workload: str | None,
    data_parameter: str,
    store: str | Path,
    as_json: bool,
    asked_by: str = "dovetail drift",
    **settings: Any,
) -> None:
    """Compare two files by `dt.drift` with these settings, submit the workload where that is asked for and there is
    drift, and show both. `dovetail why` of two files does the same."""
    from dovetail.verbs.why import read_file
    from dovetail.watch import drift as watching

    check_on_drift(on_drift, workload)
    found = watching.drift(read_file(reference), read_file(current), **settings)
    submitted = None
    if on_drift and workload and found.drifted:
        from dovetail.describe import load_workload
        from dovetail.verbs.retrain import retrain

        reason = f"drift of {current} from {reference}: {found.reason()}"
        submitted = retrain(
            load_workload(workload),
            data=current,
            parameter=data_parameter,
            reason=reason,
            asked_by=asked_by,
            store=store,
        )
    _show(found, submitted, as_json=as_json)


def check_on_drift(on_drift: str | None, workload: str | None, *, alone: bool = False) -> None:
    """Refuse what is to be done about drift where it cannot be; `alone` where a workload may be named without it."""
    if on_drift not in (None, "retrain"):
        raise DovetailError(f"--on-drift must be retrain, got {on_drift!r}.")
    if (on_drift is None) != (workload is None) and not (alone and on_drift is None):
        raise DovetailError("--on-drift retrain and --workload must come together: what to do, and with what.")


def names(given: list[str] | None) -> list[str] | None:
    """Names that were given one by one, or with commas between them.

    >>> names(["region, version", "device"])
    ['region', 'version', 'device']
    """
    return [name.strip() for each in given for name in each.split(",") if name.strip()] if given else None


def _show(found: Any, submitted: list[str] | None, *, as_json: bool) -> None:
    if as_json:
        from dovetail.cli.show import print_json

        print_json({"drifted": found.drifted, **dataclasses.asdict(found), "submitted": submitted})
        return
    console = Console()
    table = Table(box=None, pad_edge=False)
    for name in ("column", "test", "stability index", "p-value", ""):
        table.add_column(name, justify="right" if name in ("stability index", "p-value") else "left")
    for each in found.columns:
        figures = (f"{each.psi:.3f}", f"{each.p_value:.2g}", "drifted" if each.drifted else "")
        table.add_row(plain(each.name), each.test, *figures)
    console.print(table)
    say(found)
    for note in found.notes:
        say(note, err=True)
    if submitted is not None:
        count = f"{len(submitted)} task{'' if len(submitted) == 1 else 's'}"
        say(
            f"{count} submitted with the new data" if submitted else "these data were submitted before; nothing is done"
        )
