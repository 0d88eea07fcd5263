"""`dovetail serve`: the best model of a store, or a cascade of its models, over HTTP until it is stopped."""

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.answering import HOME, AddressOption, EngineOption, StoreOption, answering, duration, figures, say
from dovetail.cli.drift import DataParameterOption, OnDriftOption, check_on_drift
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.extras import check_installed

app = typer.Typer()


@app.command()
def serve(
    best: Annotated[str, typer.Option(help="Answer by the model whose metric of this name is best.")] = "",
    cascade: Annotated[
        str, typer.Option(help="Answer by a cascade of the store's models that ends with the best by this metric.")
    ] = "",
    lose: Annotated[float, typer.Option(help="The share of rows that a cascade may lose at most.")] = 0.001,
    confidence: Annotated[float, typer.Option(help="How sure that is.")] = 0.95,
    goal: Annotated[
        str,
        typer.Option(help="Whether more of the metric is better: max or min. Without it its name says so, else max."),
    ] = "",
    workload: Annotated[
        str | None,
        typer.Option(
            help="The workload whose models these are; without it, all. With --on-drift, what to submit: sweep.py."
        ),
    ] = None,
    on_drift: OnDriftOption = None,
    data_parameter: DataParameterOption = "data",
    store: StoreOption = HOME,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free one.")] = 7440,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of the model, each in a process of its own.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that a replica computes with.")] = 1,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows that one call of the model has at most.")] = 32,
    wait: Annotated[str, typer.Option(help="How long the first row of a call waits for others.")] = "2ms",
    within: Annotated[
        str, typer.Option(help="In which time a request is answered; where it would not be, it is refused with 429.")
    ] = "1s",
    p99: Annotated[
        str, typer.Option(help="Plan replicas and rows of a call so that 99 of 100 answers come within this: '20ms'.")
    ] = "",
    rate: Annotated[float, typer.Option(help="Requests a second to plan for, with --p99.")] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --rate: a file with the requests of each second, a number a line; its busiest minute is "
            "planned for.",
            dir_okay=False,
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            help="Serve nothing: say the cheapest mix of replicas for the promise on this cluster, '4xt4+8xcpu', by "
            "what calls take here."
        ),
    ] = "",
    price: Annotated[
        list[str] | None,
        typer.Option(help="With --cluster, what an hour of one device costs, by its kind: t4=0.35. May be repeated."),
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = "auto",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that a request must carry.", dir_okay=False)
    ] = None,
) -> None:
    """Serve the best model of a store over HTTP, or a cascade with a promise of how little it loses.

    Requests that come close together are answered by one call. POST /predict takes {"inputs": [[...], ...]} or
    safetensors, GET /schema says which; /health and /metrics are for those who watch; POST /reload exchanges the model
    for the best one of now. SIGTERM ends it once all that was taken is answered.
    """
    with answering():
        check_installed("a server", "orjson", "starlette", "uvicorn", "prometheus_client", extra="serve")
        if bool(best) == bool(cascade):
            raise DovetailError(
                "what is served must be named, by --best METRIC or by --cascade METRIC, one of the two."
            )
        if bool(p99) != (bool(rate) != bool(trace)):
            raise DovetailError(
                "a promise must have both: --p99 with a time, and --rate with requests a second or --trace with a file."
            )
        if (cluster and not p99) or (price and not cluster):
            raise DovetailError("a mix is planned with all three: --cluster, --price for its kinds, and --p99.")
        check_on_drift(on_drift, workload, alone=True)
        if on_drift and (cluster or engine != "local"):
            raise DovetailError(
                "--on-drift must come with a server on this machine, without --cluster and --engine ray: there each "
                "replica sees a part of the rows."
            )
        from dovetail.serve.server.ray_deployment import DeploymentSettings
        from dovetail.verbs.engine_places import check_engine
        from dovetail.verbs.latency_promise import LatencyPromise, read_trace
        from dovetail.verbs.retrain import RowTraining
        from dovetail.verbs.serve_model import ServedChoice, plan_on_cluster, serve_by_ray
        from dovetail.verbs.serve_model import serve as serve_models

        retrain = None
        if on_drift and workload:
            retrain = RowTraining(workload, parameter=data_parameter, store=store)
        choice = ServedChoice(
            store=store,
            metric=best or cascade,
            goal=goal or None,
            workload=None if on_drift else workload,  # what is trained anew is a workload of another name
            lose=lose if cascade else None,
            confidence=confidence,
            batch_rows=batch_rows,
        )
        promise = None
        if p99:
            promise = LatencyPromise(duration(p99, "--p99"), rate, read_trace(trace) if trace else ())
        if promise is not None and cluster:
            prices = figures(price or [], "--price", "t4=0.35")
            say(str(plan_on_cluster(choice, promise, cluster, prices=prices, threads=threads)))
            return
        check_engine(engine)
        if engine == "ray":
            settings = DeploymentSettings(
                replicas=replicas,
                threads=threads,
                batch_rows=batch_rows,
                wait_seconds=duration(wait, "--wait"),
                within=duration(within, "--within"),
                token=read_token(token_file),
            )
            serve_by_ray(choice, address=address, host=host, port=port, settings=settings, promise=promise, said=say)
            return
        serve_models(
            choice,
            host=host,
            port=port,
            replicas=replicas,
            threads=threads,
            wait_seconds=duration(wait, "--wait"),
            within=duration(within, "--within"),
            token=read_token(token_file),
            promise=promise,
            retrain=retrain,
            said=say,
        )


def read_token(file: Path | None) -> str:
    """The token in a file, or none."""
    if file is None:
        return ""
    try:
        found = file.read_text().strip()
    except OSError as error:
        raise DovetailError(f"the token must be readable in {file}; found: {error}.") from error
    if len(found) < 16:
        raise DovetailError(f"the token in {file} must have 16 letters at least, so that nobody guesses it.")
    return found
