"""`dovetail`: each command reads its arguments, calls one verb, and shows what came of it.

Only imported when the command runs; torch is not. `answering` has the exit codes.
"""

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli import drift as drift_command
from dovetail.cli import feed as feed_command
from dovetail.cli import race as race_command
from dovetail.cli import route as route_command
from dovetail.cli import select as select_command
from dovetail.cli import serve as serve_command
from dovetail.cli import simulate, tasks
from dovetail.cli import track as track_command
from dovetail.cli import ui as ui_command
from dovetail.cli import why as why_command
from dovetail.cli.answering import (
    FAILED,
    HOME,
    STOPPED,
    AddressOption,
    AllowOption,
    CsvOption,
    DeviceMemoryOption,
    EngineOption,
    ExactOption,
    JsonOption,
    MetricsOption,
    SortOption,
    StoreOption,
    TechniquesOption,
    answering,
    duration,
    figures,
    say,
)
from dovetail.cli.market import AtOption, LostOption, MarketOption, MoveOption, show_rental
from dovetail.cli.track import TrackModelsOption, TrackOption
from dovetail.verbs.console import Console, plain
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import parse_bytes, parse_seconds

app = typer.Typer(
    help="Train many models on the accelerators you have: measured, planned, run exactly, re-planned.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dovetail {version('dovetail')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


WorkloadFile = Annotated[
    str, typer.Argument(help="A Python file or module with a workload: sweep.py, package.sweep, or sweep.py:name.")
]
DeadlineOption = Annotated[
    list[str] | None,
    typer.Option(help="When a task must have ended, counted from now, by the task's name: large=2h. May be repeated."),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        help="What the plan minimises: makespan, when the last task ends; mean or weighted, when tasks end on average; "
        "first:3, when three have ended; spend:deadline=2h, money; target:chance=0.2, when one is likely to have met "
        "its target."
    ),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(help="How much a task counts for --objective weighted, by the task's name: large=3. May be repeated."),
]
PriceOption = Annotated[
    list[str] | None, typer.Option(help="What an hour of one device costs, by its kind: a100=2.50. May be repeated.")
]
NameOption = Annotated[str | None, typer.Option("--workload", help="Only the tasks of the workload of this name.")]


@app.command()
def run(
    workload: WorkloadFile,
    store: StoreOption = HOME,
    save_seconds: Annotated[
        float,
        typer.Option(
            help="How many seconds of training between two checkpoints of a task; more where saving would take more "
            "than a fiftieth of the time."
        ),
    ] = 30.0,
    save_steps: Annotated[
        int | None, typer.Option(help="How many steps between two checkpoints of a task, instead of --save-seconds.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="How many checkpoints of each task to keep: 2; or by how much a metric may become worse where "
            "approximations are allowed, accuracy=0.002: those of which pairs of trainings do not show that they keep "
            "to it are not used.",
            metavar="COUNT|METRIC=TOLERANCE",
            show_default=False,
        ),
    ] = None,
    keep_bytes: Annotated[
        str | None,
        typer.Option(help="How many bytes of checkpoints of each task to keep: '10 GiB'. The newest always stays."),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="Where to write checkpoints instead of the store: a folder, or a URL such as s3://bucket/folder."
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            help="How many times in a row a task's worker may crash or vanish before the task counts as failed."
        ),
    ] = 3,
    exact: ExactOption = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Train all tasks from the first step again; remove their checkpoints and metrics."
        ),
    ] = False,
    trial_seconds: Annotated[
        float,
        typer.Option(
            help="About how many seconds to spend on trials of further techniques and device counts; each kind of "
            "model has one trial in any case.",
            show_default=False,
        ),
    ] = math.inf,
    objective: ObjectiveOption = None,
    weight: WeightOption = None,
    deadline: DeadlineOption = None,
    price: PriceOption = None,
    techniques: TechniquesOption = None,
    device_memory: DeviceMemoryOption = None,
    allow: AllowOption = None,
    engine: EngineOption = "local",
    address: AddressOption = "auto",
    track: TrackOption = None,
    track_models: TrackModelsOption = False,
    ui: Annotated[bool, typer.Option("--ui", help="Also serve the live page while it runs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    sort: SortOption = None,
    metrics: MetricsOption = None,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure, plan and train a workload, or carry out a search; stop it and run it again to go on."""
    with answering():
        from dovetail.cli import show
        from dovetail.control import Settings
        from dovetail.describe import load_described
        from dovetail.metrics.progress import ENDED
        from dovetail.verbs import run_workload

        settings = Settings(
            save_every_seconds=save_seconds,
            save_every_steps=save_steps,
            keep_count=_count([text for text in keep or [] if "=" not in text]),
            keep_bytes=_bytes(keep_bytes) if keep_bytes else None,
            checkpoints=checkpoints,
            retries=retries,
            exact=exact,
            trial_seconds=trial_seconds,
        )
        console = Console(stderr=True, quiet=quiet)
        try:
            with ui_command.page_beside(store, wanted=ui):
                result = run_workload.run(
                    partial(load_described, workload),
                    store=store,
                    settings=settings,
                    **_wishes(objective, weight, deadline, price, techniques, device_memory, allow),
                    keep=figures([text for text in keep or [] if "=" in text], "--keep", "accuracy=0.002"),
                    engine=engine,
                    address=address,
                    progress=not quiet,
                    raise_on_failure=False,
                    fresh=fresh,
                    track=track or (),
                    track_models=track_models,
                    before=lambda found: _print_lines(console, found.lines()),
                )
        except KeyboardInterrupt as stopped:
            if not hasattr(stopped, "result"):
                raise
            result = stopped.result
        show.result(result, as_json=as_json, as_csv=as_csv, sort=sort, metrics=metrics)
        if any(task.status not in ENDED for task in result.tasks):
            console.print("Stopped before the end; run the same command to go on.")
            raise typer.Exit(STOPPED)
        if run_workload.has_failed(result):
            raise typer.Exit(FAILED)


@app.command()
def plan(
    workload: WorkloadFile,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Plan for this cluster instead of this machine: 8xa100+4xv100, or 2x8xh100 for two nodes of eight."
        ),
    ] = None,
    objective: ObjectiveOption = None,
    weight: WeightOption = None,
    deadline: DeadlineOption = None,
    price: PriceOption = None,
    techniques: TechniquesOption = None,
    device_memory: DeviceMemoryOption = None,
    allow: AllowOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show how much sooner all would end with one more device.")
    ] = False,
    solve_seconds: Annotated[float, typer.Option(help="About how many seconds the solver may take.")] = 5.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the plan to this file, as an HTML page.")
    ] = None,
    market: MarketOption = None,
    move: MoveOption = "10min",
    lost: LostOption = "2min",
    at: AtOption = None,
    store: StoreOption = HOME,
    engine: EngineOption = "local",
    address: AddressOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure what has not been measured yet, and show the plan. Nothing is trained but short trials. With --market:
    what to rent when."""
    with answering():
        from dovetail.cli import plan_page, show
        from dovetail.describe import load_workload
        from dovetail.verbs import make_plan

        console = Console(stderr=True)
        if market is not None:
            from dovetail.verbs.rent import rent

            if weight or deadline or price or explain or output:
                raise DovetailError(
                    "plan --market takes its deadline from --objective and prices from the market; leave out --weight, "
                    "--deadline, --price, --explain and --output."
                )
            rental = rent(
                partial(load_workload, workload),
                market=market,
                objective=objective or "makespan",
                cluster=cluster,
                move_seconds=duration(move, "--move"),
                lost_seconds=duration(lost, "--lost"),
                at=at,
                solve_seconds=solve_seconds,
                techniques=techniques,
                device_memory=device_memory,
                allow=allow,
                store=store,
                engine=engine,
                address=address,
                before=lambda changes: _print_lines(console, changes.lines()),
            )
            show_rental(rental, as_json=as_json)
            return
        found = make_plan.plan(
            partial(load_workload, workload),
            **_wishes(objective, weight, deadline, price, techniques, device_memory, allow),
            cluster=cluster,
            explain=explain,
            solve_seconds=solve_seconds,
            store=store,
            engine=engine,
            address=address,
            before=lambda changes: _print_lines(console, changes.lines()),
        )
        show.plan(found, as_json=as_json)
        if not as_json and (drawn := plan_page.timetables(found, store=store)):
            show.show_timetables(drawn)
        if output is not None:
            say(plan_page.write_plan(found, output, store=store), err=True)


@app.command()
def profile(
    workload: WorkloadFile,
    store: StoreOption = HOME,
    layers: Annotated[bool, typer.Option(help="Also show each layer.")] = False,
    engine: EngineOption = "local",
    address: AddressOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure a workload's models, those of one shape once, and show time, memory and layers."""
    with answering():
        from dovetail.cli import show
        from dovetail.describe import load_workload
        from dovetail.verbs import measure

        found, failures = measure.profile(partial(load_workload, workload), store=store, engine=engine, address=address)
        show.show_profiles(found, layers=layers, as_json=as_json)
        for failure in failures:
            say(f"not measured: {failure}", err=True)
        if failures:
            raise typer.Exit(FAILED)


@app.command("show")
def show_(
    store: StoreOption = HOME,
    workload: NameOption = None,
    sort: SortOption = None,
    metrics: MetricsOption = None,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where every task in the store stands, whether or not anything runs."""
    with answering():
        from dovetail.cli import show
        from dovetail.control import open_result

        found = open_result(store, workload=workload)
        show.result(found, as_json=as_json, as_csv=as_csv, sort=sort, metrics=metrics)


@app.command()
def timetable(
    task: Annotated[str | None, typer.Argument(help="The task's name. Leave it out for all tasks.")] = None,
    store: StoreOption = HOME,
    workload: NameOption = None,
) -> None:
    """Draw when each device computes which microbatch, planned and measured, for tasks that run as pipelines."""
    with answering():
        from dovetail.cli import show
        from dovetail.store import Store
        from dovetail.web.timetable_charts import read_timetables

        with Store(store) as opened:
            show.show_timetables(read_timetables(opened, workload=workload, task=task))


@app.command()
def report(
    store: StoreOption = HOME,
    workload: NameOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page with the schedule, curves, parameters and tables. It needs no network."""
    with answering():
        from dovetail.store import Store
        from dovetail.web.report import write_report

        with Store(store) as opened:
            say(write_report(opened, output, workload=workload))


@app.command()
def export(
    task: Annotated[
        str | None, typer.Argument(help="The task: its name, id or parameters. Leave it out with --best.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .safetensors file, or the folder, to write.")
    ] = Path("model"),
    best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Export the task whose metric of this name is best: its value at the best checkpoint where "
            "Training.keep_best has one kept, else, or with --last, its last value.",
        ),
    ] = None,
    goal: Annotated[
        str, typer.Option(help="Whether more or less of --best's metric is better: max or min. Else its name says so.")
    ] = "",
    last: Annotated[
        bool, typer.Option("--last", help="Export the last weights even where Training.keep_best has kept better ones.")
    ] = False,
    store: StoreOption = HOME,
    workload: NameOption = None,
) -> None:
    """Write a trained model as safetensors, or through save_pretrained where the model has it (transformers)."""
    with answering():
        from dovetail.control import open_result, table
        from dovetail.metrics.task_addresses import match_task

        if (task is None) == (best is None):
            raise DovetailError("export must be told which task: its name, or --best METRIC, one of the two.")
        if goal not in ("", "max", "min"):
            raise DovetailError(f"--goal must be max or min, got {goal!r}.")
        found = open_result(store, workload=workload)
        if best is not None:
            chosen = found.best(best, goal=goal or None, last=last)
        else:
            chosen = found[match_task(task or "", table(found))["task"]]
        value = "" if best is None else f", {best} {chosen.value(best, last=last):.4g}"
        name = Redactor([chosen.task.parameters])(chosen.name)
        say(f"{chosen.export(output, last=last)}  ({name}{value})")


@app.command()
def cluster(
    measure: Annotated[
        bool, typer.Option(help="Also measure how fast they multiply matrices, read memory and talk to each other.")
    ] = False,
    engine: EngineOption = "local",
    address: AddressOption = "auto",
    market: MarketOption = None,
    store: StoreOption = HOME,
    as_json: JsonOption = False,
) -> None:
    """Show the devices of this machine, or with --engine ray the nodes of a Ray cluster: kinds, prices, notices."""
    with answering():
        from dovetail.cli import show
        from dovetail.verbs.engine_places import check_engine
        from dovetail.verbs.measure import cluster as find_cluster
        from dovetail.verbs.nodes import look_at_nodes, past_nodes

        check_engine(engine)
        if engine == "ray":
            found = look_at_nodes(address=address, store=store, market=market)
            show.show_nodes(found, past_nodes(store), as_json=as_json)
            return
        show.cluster(find_cluster(measure=measure, store=store), as_json=as_json)


app.add_typer(drift_command.app)
app.add_typer(feed_command.app)
app.add_typer(race_command.app)
app.add_typer(route_command.app)
app.add_typer(select_command.app)
app.add_typer(why_command.app)
app.add_typer(serve_command.app)
app.add_typer(tasks.app)
app.add_typer(simulate.app)
app.add_typer(track_command.app)
app.add_typer(ui_command.app)


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(plain(line), soft_wrap=True)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise DovetailError(f"--keep-bytes: {error}") from None


def _count(given: list[str]) -> int:
    """How many checkpoints `--keep` says to keep: the last number that was given."""
    try:
        return int(given[-1]) if given else 2
    except ValueError:
        raise DovetailError(
            f"--keep must be a number of checkpoints, as in --keep 2, or a metric and a tolerance, as in "
            f"--keep accuracy=0.002, got {given[-1]!r}."
        ) from None


def _wishes(
    objective: str | None,
    weight: list[str] | None,
    deadline: list[str] | None,
    price: list[str] | None,
    techniques: str | None,
    device_memory: str | None,
    allow: str | None,
) -> dict[str, Any]:
    """What is wanted of the whole, as `plan` and `run` are told."""
    return {
        "objective": objective,
        "weights": figures(weight or [], "--weight", "large=3"),
        "deadlines": figures(deadline or [], "--deadline", "large=2h", read=parse_seconds),
        "prices": figures(price or [], "--price", "a100=2.50"),
        "techniques": techniques,
        "device_memory": device_memory,
        "allow": allow,
    }
