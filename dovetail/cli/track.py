"""`dovetail track`: sends trackers what they have not been sent of a store, or follows it until stopped."""

import contextlib
import threading
from typing import Annotated

import typer

from dovetail.cli.answering import HOME, StoreOption, answering, say
from dovetail.verbs.console import Console

app = typer.Typer()

TrackersArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACKER...",
        help="mlflow:FOLDER or mlflow:URI (sqlite:///runs.db, http://host:5000), wandb:PROJECT, tensorboard:FOLDER.",
    ),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also tell a tracker, live: mlflow:./mlruns, or any tracking URI behind mlflow:; wandb:PROJECT; "
        "tensorboard:./runs. May be repeated.",
    ),
]
TrackModelsOption = Annotated[
    bool, typer.Option("--track-models", help="Also give trackers the trained models (MLflow, W&B).")
]
WorkloadOption = Annotated[str | None, typer.Option("--workload", help="Only the tasks of the workload of this name.")]


@app.command()
def track(
    trackers: TrackersArgument,
    store: StoreOption = HOME,
    workload: WorkloadOption = None,
    models: TrackModelsOption = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until stopped by Ctrl-C.")] = False,
) -> None:
    """Send MLflow, W&B or TensorBoard what they have not been sent yet: parameters, curves, status, plans."""
    with answering():
        from dovetail.store import Store
        from dovetail.trackers import check_trackers
        from dovetail.verbs.tracking import send_now, trackers_beside

        with Store(store) as opened:
            opened.described(workload)  # refuses a store, or a workload, that is not there
        addresses = check_trackers(trackers, models=models)
        if follow:
            beside = trackers_beside(addresses, home=store, workload=workload, models=models)
            with beside, contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
            return
        for address in addresses:
            say(send_now(address, store, workload=workload, models=models, console=Console(stderr=True)), err=True)
