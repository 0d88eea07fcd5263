"""`dovetail daemon` and what is asked of it: submit, list, pause, resume, cancel, priority, deadline, clone, stop."""

import contextlib
import datetime
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli.answering import (
    HOME,
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
    ask_controller,
    duration,
    entities,
    say,
)
from dovetail.cli.market import LostOption, MarketOption, MoveOption
from dovetail.vocabulary import DovetailError, InvalidWorkload, StoreError
from dovetail.vocabulary.redact import show_value
from dovetail.vocabulary.units import parse_seconds

app = typer.Typer()

TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="The task: its name, its id (or how that begins), a pattern of names ('net*') or parameters "
        "('rate=0.1,width=8*').",
    ),
]
TasksArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TASK...",
        help="Tasks: names, ids (or how they begin), patterns of names ('net*') or parameters ('rate=0.1,width=8*').",
    ),
]
ParametersArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Parameters of the program: learning_rate=0.1.")
]


@app.command()
def daemon(
    store: StoreOption = HOME,
    port: Annotated[
        int | None,
        typer.Option(help="Take commands on this port of 127.0.0.1 (0: any free one) instead of a Unix socket."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="The policy by which tasks share the devices in turns: max_min_fairness, hierarchical, and others."
        ),
    ] = "max_min_fairness",
    entity: Annotated[
        list[str] | None,
        typer.Option(
            help="For policy hierarchical, the weight of a group of users, and how its own tasks share: vision=2, "
            "speech=1:first_come. May be repeated."
        ),
    ] = None,
    round_: Annotated[str, typer.Option("--round", help="How long a turn on the devices lasts: 60s, 5min.")] = "60s",
    objective: Annotated[
        str | None,
        typer.Option(
            help="Run one schedule that minimises this, instead of sharing in turns: weighted, mean or makespan."
        ),
    ] = None,
    techniques: TechniquesOption = None,
    device_memory: DeviceMemoryOption = None,
    allow: AllowOption = None,
    save_seconds: Annotated[
        float,
        typer.Option(
            help="How many seconds of training between two checkpoints of a task; more where saving would take more "
            "than a fiftieth of the time."
        ),
    ] = 30.0,
    keep: Annotated[int, typer.Option(help="How many checkpoints of each task to keep.")] = 2,
    retries: Annotated[
        int,
        typer.Option(
            help="How many times in a row a task's worker may crash or vanish before the task counts as failed."
        ),
    ] = 3,
    exact: ExactOption = False,
    engine: EngineOption = "local",
    address: AddressOption = "auto",
    market: MarketOption = None,
    provision: Annotated[
        str | None,
        typer.Option(
            help="With --market: a command that starts, stops and lists nodes, which are rented by the prices: "
            "./nodes.sh; or autoscaler, for Ray's own."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="With --market: how many devices of each kind to rent at most: 4xv100+8xk80.")
    ] = None,
    move: MoveOption = "10min",
    lost: LostOption = "2min",
    every: Annotated[str, typer.Option(help="With --market: how often prices and nodes are asked for.")] = "60s",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Wait for submitted tasks and run them, until stopped. Started again on the same store, it goes on with them."""
    with answering():
        from dovetail.control import Settings
        from dovetail.verbs.daemon import run_daemon

        settings = Settings(save_every_seconds=save_seconds, keep_count=keep, retries=retries, exact=exact)
        run_daemon(
            store=store,
            settings=settings,
            policy=policy,
            shared_by=entities(entity),
            round_seconds=duration(round_, "--round"),
            objective=objective,
            techniques=techniques or (),
            device_memory=device_memory,
            allow=allow or (),
            engine=engine,
            address=address,
            market=market,
            provision=provision,
            most=cluster,
            move_seconds=duration(move, "--move"),
            lost_seconds=duration(lost, "--lost"),
            every_seconds=duration(every, "--every"),
            port=port,
            progress=not quiet,
            listening=lambda where: say(f"dovetail daemon on {store}, listening on {where}", err=True),
        )


@app.command()
def submit(
    what: Annotated[
        str,
        typer.Argument(
            help="A workload: sweep.py, package.sweep or sweep.py:name. With --steps or --epochs, a program: "
            "models.py:net."
        ),
    ],
    parameters: ParametersArgument = None,
    steps: Annotated[int | None, typer.Option(help="For a program: how many steps to train.")] = None,
    epochs: Annotated[int | None, typer.Option(help="For a program: how many epochs to train.")] = None,
    name: Annotated[str | None, typer.Option(help="For a program: the task's name.")] = None,
    priority: Annotated[float, typer.Option(help="How much each task counts: 1 is usual, 2 counts twice.")] = 1.0,
    deadline: Annotated[
        str | None,
        typer.Option(help="When the tasks should have ended: a time from now, 2h, or a moment, 2026-11-30T18:00."),
    ] = None,
    entity: Annotated[
        str,
        typer.Option(help="The group of users that the tasks belong to, for a daemon whose policy is hierarchical."),
    ] = "",
    store: StoreOption = HOME,
) -> None:
    """Give the daemon the tasks of a workload, or a program to train as one task."""
    with answering():
        from dovetail.verbs.client import Client

        workload = _workload(what, _values(parameters), steps=steps, epochs=epochs, name=name)
        left_seconds = None if deadline is None else _moment(deadline) - time.time()
        names = Client(store).submit(workload, priority=priority, deadline_seconds=left_seconds, entity=entity)
        typer.echo(f"{len(names)} task{'' if len(names) == 1 else 's'} submitted")


@app.command("list")
def list_(
    store: StoreOption = HOME,
    sort: SortOption = None,
    metrics: MetricsOption = None,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show every task of the controller that runs: where it stands, when it should start and end, and why it waits."""
    with answering():
        from dovetail.cli import show

        answer = ask_controller(store, {"do": "list"})
        now = answer["now_seconds"]
        show.show_standing(answer["tasks"], now=now, as_json=as_json, as_csv=as_csv, sort=sort, metrics=metrics)


@app.command()
def pause(tasks: TasksArgument, store: StoreOption = HOME) -> None:
    """Save tasks and keep them out of plans until they are resumed."""
    with answering():
        _ask_each(store, tasks, {"do": "pause"})


@app.command()
def resume(tasks: TasksArgument, store: StoreOption = HOME) -> None:
    """Let paused tasks go on; try again those that failed or were cancelled."""
    with answering():
        _ask_each(store, tasks, {"do": "resume"})


@app.command()
def cancel(tasks: TasksArgument, store: StoreOption = HOME) -> None:
    """Save tasks and end them."""
    with answering():
        _ask_each(store, tasks, {"do": "cancel"})


@app.command()
def priority(
    tasks: TasksArgument,
    priority: Annotated[
        float, typer.Argument(metavar="NUMBER", help="A number greater than 0: 1 is usual, 2 counts twice.")
    ],
    store: StoreOption = HOME,
) -> None:
    """Change how much tasks count beside others."""
    with answering():
        _ask_each(store, tasks, {"do": "priority", "priority": priority})


@app.command()
def deadline(
    tasks: TasksArgument,
    deadline: Annotated[
        str,
        typer.Argument(
            metavar="WHEN",
            help="When the tasks should have ended: a time from now, 2h, or a moment, 2026-11-30T18:00; or none.",
        ),
    ],
    store: StoreOption = HOME,
) -> None:
    """Say when tasks should have ended."""
    with answering():
        due = None if deadline == "none" else _moment(deadline)
        _ask_each(store, tasks, {"do": "deadline", "deadline_seconds": due})


@app.command()
def logs(
    tasks: TasksArgument,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print more as it comes, until the tasks have ended or nothing runs any more."
        ),
    ] = False,
    store: StoreOption = HOME,
) -> None:
    """Show what tasks have printed, attempt by attempt, and the traceback of those that failed."""
    with answering():
        from dovetail.cli.task_log import print_logs

        print_logs(tasks, store=store, follow=follow)


@app.command()
def clone(
    task: TaskArgument,
    parameters: ParametersArgument = None,
    warm: Annotated[
        bool | None,
        typer.Option(
            "--warm/--fresh",
            help="Begin with the weights that the task last saved, or from scratch. One of the two must be given.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name of the copy.")] = None,
    store: StoreOption = HOME,
) -> None:
    """Train a copy of a task with changed parameters: with its weights (--warm) or from scratch (--fresh).

    In both cases the optimizer, the schedule and the data begin anew.
    """
    with answering():
        if warm is None:
            raise InvalidWorkload("a clone must be told how to begin: --warm, with the other's weights, or --fresh.")
        values = _values(parameters)
        (name_of_other,) = _names(store, [task], one=True)
        _show_answer(
            ask_controller(
                store, {"do": "clone", "task": name_of_other, "parameters": values, "warm": warm, "name": name}
            )
        )


@app.command()
def stop(store: StoreOption = HOME) -> None:
    """Ask the controller that runs on this store to save everything and stop."""
    with answering():
        _show_answer(ask_controller(store, {"do": "stop", "reason": "asked for by 'dovetail stop'"}))


def _names(store: Path, words: list[str], *, one: bool = False) -> list[str]:
    """The names of the controller's tasks that these words mean."""
    from dovetail.metrics.task_addresses import match_task, match_tasks
    from dovetail.store import Store

    # Plain names need no question to the controller, which may be a moment away from answering.
    with contextlib.suppress(StoreError), Store(store) as opened:
        if {task.name for _, task in opened.tasks()}.issuperset(words):
            return list(dict.fromkeys(words))
    rows = ask_controller(store, {"do": "list"})["tasks"]
    found = [match_task(words[0], rows)] if one else match_tasks(words, rows)
    return [row["task"] for row in found]


def _ask_each(store: Path, words: list[str], request: dict[str, Any]) -> None:
    """Ask the same of each task that these words mean. One that refuses does not keep the others from it."""
    refused: list[DovetailError] = []
    for name in _names(store, words):
        try:
            _show_answer(ask_controller(store, {**request, "task": name}))
        except DovetailError as error:
            refused.append(error)
    if refused:
        raise type(refused[0])("\n".join(str(each) for each in refused))


def _show_answer(answer: Mapping[str, Any]) -> None:
    say(answer["done"])


def _workload(what: str, parameters: dict[str, Any], *, steps: int | None, epochs: int | None, name: str | None) -> Any:
    """The workload to submit. Runs the file that defines it, here: a daemon only ever reads it."""
    from dovetail.describe import check_parameters, load, load_workload, program, task, workload

    if steps is None and epochs is None:
        if parameters or name:
            raise InvalidWorkload("parameters and --name must go with a program, and with its --steps or --epochs.")
        return load_workload(what)
    reference = program(what)
    check_parameters(load(reference), parameters, name=reference.function)
    words = [reference.function, *(f"{key}={show_value(key, value, str(value))}" for key, value in parameters.items())]
    called = name or " ".join(words).replace("/", "_")
    one = task(what, name=called, steps=steps, epochs=epochs, **parameters)
    return workload([one], name=Path(reference.reference).name.replace(".py:", ":"))


def _values(given: list[str] | None) -> dict[str, Any]:
    """Parameters as they are written on a command line: numbers, true, null and lists as in JSON, else text."""
    found: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidWorkload(f"a parameter must be a name and a value, as in learning_rate=0.1, got {text!r}.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _moment(text: str) -> float:
    """When a deadline is, in seconds since 1970."""
    try:
        return time.time() + parse_seconds(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise DovetailError(
            f"a deadline must be a time from now such as 2h, or a moment such as 2026-11-30T18:00, got {text!r}."
        ) from None
