"""`dovetail simulate`: streams of tasks on a cluster that is imagined, under one policy or several, at one load or
several; a table, JSON, a page with plots."""

import dataclasses
import json
import math
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dovetail.cli.answering import JsonOption, answering, entities, figures
from dovetail.cli.market import LostOption, MarketOption, MoveOption, replay_market
from dovetail.verbs.choices import check_name, choose
from dovetail.verbs.console import Console
from dovetail.vocabulary import Cluster, DovetailError
from dovetail.vocabulary.units import show_seconds

if TYPE_CHECKING:
    from dovetail.control.simulation.outcome import Outcome
    from dovetail.describe.streams import Stream
    from dovetail.engines import Outage
    from dovetail.planning.share.policies.blindness import Policy

app = typer.Typer()

_DRAWN_SECONDS = 0.2
DAY = 86400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One simulation of a sweep and what came of it."""

    policy: str
    blind: bool
    load: float
    outcome: "Outcome"

    @property
    def name(self) -> str:
        """What it is called in tables and plots."""
        return f"{self.policy}{', blind' if self.blind else ''}"


@app.command()
def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(help="Tasks as they arrive: a CSV in Dovetail's form, a trace of Gavel's or a log of Philly's."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="The policy by which tasks share the devices: max_min_fairness. May be repeated, to compare."
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="The devices: 8xv100+16xp100+24xk80, or 42x8xv100 for 42 nodes of 8.")
    ] = "8xv100",
    price: Annotated[
        list[str] | None,
        typer.Option(help="What an hour of one device costs, by its kind: v100=2.48. May be repeated."),
    ] = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            help="For policy hierarchical, the weight of a group of users, and how its own tasks share: vision=2, "
            "speech=1:first_come. May be repeated."
        ),
    ] = None,
    rounds: Annotated[float, typer.Option(help="How many seconds a turn on the devices lasts.")] = 360.0,
    between: Annotated[
        float, typer.Option(help="How many seconds at least between two computations of the shares.")
    ] = 0.0,
    loads: Annotated[
        str, typer.Option(help="How many times as fast tasks arrive; several, to compare: 0.5,1,2.")
    ] = "1",
    blind: Annotated[
        bool,
        typer.Option(
            "--blind",
            help="Also simulate each policy without knowing that kinds of devices differ in speed, to compare.",
        ),
    ] = False,
    packed: Annotated[
        bool,
        typer.Option(
            "--packed", help="Let two tasks share a device at the same time, where the speed of that pair was measured."
        ),
    ] = False,
    predicted: Annotated[
        bool,
        typer.Option(
            "--predicted",
            help="With --packed: also pairs that were not measured, at the speed predicted from those that were.",
        ),
    ] = False,
    generate: Annotated[
        int | None, typer.Option(help="Draw this many tasks at random instead of reading a trace.")
    ] = None,
    rate: Annotated[float, typer.Option(help="For --generate: how many tasks arrive in an hour.")] = 4.0,
    several: Annotated[
        bool, typer.Option("--several", help="For --generate: let some tasks take 2 to 8 devices.")
    ] = False,
    rates: Annotated[
        Path | None, typer.Option(help="A table in Gavel's form of steps per second, by kind of device and model.")
    ] = None,
    tasks: Annotated[int, typer.Option(help="Read only this many tasks of the trace; 0: all.")] = 0,
    load_seconds: Annotated[float, typer.Option(help="How many seconds a task loses when it starts on devices.")] = 0.0,
    save_seconds: Annotated[float, typer.Option(help="How many seconds a task loses when it leaves devices.")] = 0.0,
    node_days: Annotated[float, typer.Option(help="After how many days a node breaks, on average; 0: never.")] = 0.0,
    repair_seconds: Annotated[float, typer.Option(help="How many seconds a broken node is gone.")] = 3600.0,
    seed: Annotated[int, typer.Option(help="The seed of all random numbers.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Also write the results to this file, as an HTML page with plots.")
    ] = None,
    market: MarketOption = None,
    work: Annotated[
        str | None, typer.Option(help="With --market: how long the work takes on a device of speed 1: 24h.")
    ] = None,
    deadline: Annotated[
        list[str] | None,
        typer.Option(help="With --market: by when the work must have ended, counted from its start. May be repeated."),
    ] = None,
    speed: Annotated[
        list[str] | None,
        typer.Option(help="With --market: how fast one device of a kind works: v100=1, k80=0.2. May be repeated."),
    ] = None,
    same_pace: Annotated[
        bool,
        typer.Option("--same-pace", help="With --market: rent as many of each kind as work as fast as one of speed 1."),
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(help="With --market: begin a run so often in the history; about a hundred unless told."),
    ] = None,
    move: MoveOption = "10min",
    lost: LostOption = "2min",
    replay: Annotated[
        Path | None,
        typer.Option(help="Say what was possible in the newest run of this store on Ray, as its nodes came and went."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate tasks that arrive at a shared cluster, with the controller that runs real ones, on a virtual clock. Or,
    with
    --market, replay a history of prices: the same work begun at many moments, on what was best to rent."""
    with answering():
        if replay is not None:
            _replay_nodes(replay, as_json=as_json)
            return
        if market is not None:
            if trace is not None or generate is not None:
                raise DovetailError("simulate must be given a trace of tasks or --market, one of the two.")
            replay_market(
                market,
                work=work,
                deadlines=deadline or [],
                speeds=speed or [],
                same_pace=same_pace,
                move=move,
                lost=lost,
                every=every,
                as_json=as_json,
            )
            return
        from dovetail.planning.options.kinds import parse_cluster, with_prices

        where = with_prices(parse_cluster(cluster), figures(price or [], "--price", "v100=2.48"))
        names = _policies(policy or ["max_min_fairness"])
        stream = _stream(
            trace,
            where,
            generate=generate,
            rate=rate,
            several=several,
            rates=rates,
            packed=packed or predicted,
            tasks=tasks,
            seed=seed,
        )
        if predicted:
            stream = _with_predicted_pairs(stream, where)
        how: dict[str, Any] = {
            "round_seconds": rounds,
            "least_seconds_between": between,
            "load_seconds": load_seconds,
            "save_seconds": save_seconds,
            "entities": entities(entity),
            "outages": outages(where, stream, node_days=node_days, repair_seconds=repair_seconds, seed=seed),
        }
        blindness = [False, True] if blind else [False]
        factors = _loads(loads)
        cases = sweep(stream, where, policies=names, blindness=blindness, loads=factors, how=how, quiet=quiet)
        if as_json:
            typer.echo(json.dumps([_record(case) for case in cases], indent=2))
        else:
            Console().print(_table(cases))
        if report is not None:
            from dovetail.web.simulation import write_simulation

            title = trace.name if trace else f"{generate} drawn tasks, seed {seed}"
            plots = [
                (f"{case.name}{f', load {case.load:g}' if len(factors) > 1 else ''}", case.outcome) for case in cases
            ]
            typer.echo(write_simulation(plots, report, title=f"{title} on {cluster}"), err=True)


def _replay_nodes(store: Path, *, as_json: bool) -> None:
    from dovetail.control.simulation.node_replay import replay_nodes
    from dovetail.store import Store

    with Store(store) as opened:
        found = replay_nodes(opened)
    if as_json:
        typer.echo(
            json.dumps({**dataclasses.asdict(found), "over": found.over, "over_paced": found.over_paced}, indent=2)
        )
        return
    Console().print(
        f"{found.tasks} tasks on {found.nodes} nodes that came and went took {show_seconds(found.real_seconds)}; "
        f"{show_seconds(found.possible_seconds)} were possible ({found.over:.2f} times), "
        f"{show_seconds(found.paced_seconds)} with steps as slow as they were ({found.over_paced:.2f} times)"
    )


def sweep(
    stream: "Stream",
    cluster: Cluster,
    *,
    policies: "Sequence[str | Policy]",
    blindness: Sequence[bool],
    loads: Sequence[float],
    how: dict[str, Any],
    quiet: bool,
) -> list[Case]:
    """Every policy, by name or as a function, at every load, with a progress bar on the error stream."""
    from dovetail.control.simulation.simulating import simulate as run
    from dovetail.planning.share.policies import POLICIES

    named = {each if isinstance(each, str) else each.__name__: choose("a policy", each, POLICIES) for each in policies}
    plan = [(name, load, is_blind) for name in named for load in loads for is_blind in blindness]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    cases = []
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task("", total=len(plan) * len(stream.arrivals))
        for number, (name, load, is_blind) in enumerate(plan):
            progress.update(bar, description=f"{name}{', blind' if is_blind else ''}, load {load:g}")
            watch = _Watch(progress, bar, before=number * len(stream.arrivals), tasks=len(stream.arrivals))
            faster = stream.faster(load)
            found = run(
                faster.arrivals,
                options=faster.options,
                cluster=cluster,
                policy=named[name],
                blind=is_blind,
                observe=watch,
                **how,
            )
            cases.append(Case(policy=name, blind=is_blind, load=load, outcome=found))
    return cases


class _Watch:
    """Moves a progress bar, a few times a second."""

    def __init__(self, progress: Progress, bar: Any, *, before: int, tasks: int) -> None:
        self._progress, self._bar, self._before, self._tasks = progress, bar, before, tasks
        self._drawn_at = 0.0

    def __call__(self, controller: Any) -> None:
        if time.monotonic() - self._drawn_at > _DRAWN_SECONDS:
            self._drawn_at = time.monotonic()
            self._progress.update(self._bar, completed=self._before + self._tasks - controller.left)


def outages(
    cluster: Cluster, stream: "Stream", *, node_days: float, repair_seconds: float, seed: int
) -> list["Outage"]:
    """Nodes that break at random, each once in so many days on average, and are back after a repair.

    They break for ten times as long as the devices would need for all the work, which no policy exceeds by far."""
    from dovetail.engines import Outage

    if not (node_days >= 0 and repair_seconds > 0):
        raise DovetailError(
            f"nodes must break after at least 0 days and take longer than 0 s to repair, got {node_days} and "
            f"{repair_seconds}."
        )
    if not node_days:
        return []
    dice = random.Random(seed)
    horizon = max((arrival.at_seconds for arrival in stream.arrivals), default=0.0)
    horizon += 10 * _work_seconds(stream) / len(cluster.devices) + DAY
    found = []
    for node in cluster.nodes:
        devices = tuple(device.name for device in cluster.devices if device.node == node.name)
        at = dice.expovariate(1 / (node_days * DAY))
        while at < horizon:
            found.append(Outage(devices=devices, at_seconds=at, back_seconds=at + repair_seconds))
            at += repair_seconds + dice.expovariate(1 / (node_days * DAY))
    return found


def _work_seconds(stream: "Stream") -> float:
    longest: dict[str, float] = {}
    for option in stream.options:
        if len(option.families) == 1:
            name = option.families[0]
            longest[name] = max(longest.get(name, 0.0), option.step_seconds[0] * option.count)
    return sum(arrival.steps * longest.get(arrival.family, 0.0) for arrival in stream.arrivals)


def _loads(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise DovetailError(f"--loads must be numbers between commas, as in 0.5,1,2, got {text!r}.") from None


def _policies(names: Iterable[str]) -> list[str]:
    from dovetail.planning.share.policies import POLICIES

    found = [name for text in names for name in text.split(",")]
    for name in found:
        check_name("a policy", name, POLICIES)
    return found


def _stream(
    trace: Path | None,
    cluster: Cluster,
    *,
    generate: int | None,
    rate: float,
    several: bool,
    rates: Path | None,
    packed: bool,
    tasks: int,
    seed: int,
) -> "Stream":
    from dovetail.control.simulation.workloads import draw, read_any

    if (trace is None) == (generate is None):
        raise DovetailError("simulate must be given a trace to read, or --generate and how many tasks; one of the two.")
    kinds = [kind.name for kind, count in cluster.counts() if count]
    if trace is not None:
        found = read_any(trace, kinds=kinds, rates=rates, packed=packed, tasks=tasks, seed=seed)
        if rounded := sum(arrival.rounded for arrival in found.arrivals):
            typer.echo(
                f"{rounded:,} of {len(found.arrivals):,} tasks ask for more devices than their model was measured on "
                "and take the greatest count below that was measured",
                err=True,
            )
        return found
    assert generate is not None
    return draw(generate, per_hour=rate, kinds=kinds, rates=rates, packed=packed, several=several, seed=seed)


def _with_predicted_pairs(stream: "Stream", cluster: Cluster) -> "Stream":
    """The stream with all pairs, and on the error stream what the predicted ones are worth."""
    from dovetail.control.simulation.workloads import with_predicted_pairs

    more, found = with_predicted_pairs(stream, cluster)
    off = "" if math.isnan(found.error) else f"; of the measured pairs half would be less than {found.error:.0%} off"
    typer.echo(f"{len(found.options)} pairs are predicted{off}", err=True)
    return more


def _figures(case: Case) -> dict[str, float]:
    found = case.outcome
    fairness = [value for _, value in found.fairness]
    return {
        "mean_hours": found.mean_hours,
        "median_hours": found.quantile_hours(0.5),
        "p99_hours": found.quantile_hours(0.99),
        "makespan_hours": found.makespan_hours,
        "busy": found.busy,
        "fairness": sum(fairness) / len(fairness) if fairness else math.nan,
        "starts_a_task": found.starts / len(found.seconds),
        "lost": found.lost,
        "late": len(found.missed),
        "spend": found.spend,
        "cpu_seconds": found.cpu_seconds,
    }


def _record(case: Case) -> dict[str, Any]:
    figures = {name: None if math.isnan(value) else value for name, value in _figures(case).items()}
    series = {"seconds": case.outcome.seconds, "missed": case.outcome.missed}
    return {"policy": case.policy, "blind": case.blind, "load": case.load, **figures, **series}


_COLUMNS = {
    "mean_hours": ("mean h", ".2f"),
    "p99_hours": ("99%", ".2f"),
    "makespan_hours": ("all", ".2f"),
    "busy": ("busy", ".0%"),
    "fairness": ("fair", ".2f"),
    "starts_a_task": ("starts", ".1f"),
    "lost": ("lost", ".0f"),
    "late": ("late", ".0f"),
    "spend": ("spend", ",.2f"),
    "cpu_seconds": ("CPU s", ".1f"),
}


def _table(cases: Sequence[Case]) -> Table:
    """A line for each case; what is the same and nothing everywhere is left out, so that 80 columns do."""
    figures = [_figures(case) for case in cases]
    columns = {
        name: shown
        for name, shown in _COLUMNS.items()
        if name not in ("lost", "late", "spend") or any(each[name] for each in figures)
    }
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    table.add_column("policy", no_wrap=True)
    for name in ("load", *(shown for shown, _ in columns.values())):
        table.add_column(name, justify="right", no_wrap=True)
    for case, found in zip(cases, figures, strict=True):
        table.add_row(case.name, f"{case.load:g}", *(f"{found[name]:{how}}" for name, (_, how) in columns.items()))
    return table
