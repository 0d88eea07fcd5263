"""Tables for the terminal, and the same as JSON."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dovetail.cli.gantt import gantt
from dovetail.metrics.task_addresses import shorten_ids
from dovetail.metrics.task_rows import Row, choose_metrics, sort_rows, to_csv
from dovetail.verbs.console import Console, plain
from dovetail.vocabulary import Cluster, Plan, Profile, TaskId, to_json
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import show_bytes, show_seconds, show_some
from dovetail.vocabulary.user_text import escape_controls, shorten

if TYPE_CHECKING:
    from dovetail.control import Result
    from dovetail.metrics.attendance import Attendance
    from dovetail.verbs.nodes import NodeStanding
    from dovetail.web.timetable_charts import PipelineDrawing

_RANK_COLUMNS = 8  # what stands before a rank's row
# Of so many failures the traceback stands below the table.
_TRACEBACKS = 3
# From this share of its steps on, what a task waits for data is worth telling.
_WAITED = 0.1
# As much of a reason as stands in a table; JSON and CSV have all of it.
_MOST_CELL = 1000
_COLOURS = {
    "finished": "green",
    "failed": "red",
    "running": "cyan",
    "halved": "yellow",
    "pruned": "yellow",
    "cancelled": "yellow",
}


def result(
    found: "Result",
    *,
    as_json: bool = False,
    as_csv: bool = False,
    sort: str | None = None,
    metrics: Sequence[str] | None = None,
) -> None:
    """Every task with its status and last metrics: those that are named, or the first few, in the order of `sort`."""
    from dovetail.control import table  # the whole loop comes along, and `dovetail --help` needs none of it

    redact = Redactor((task.task.parameters for task in found.tasks), variables=os.environ)
    tasks = redact.record(sort_rows(table(found), sort))
    warnings, judged = ([redact(text) for text in texts] for texts in (found.warnings, found.judged))
    if as_json:
        summary: dict[str, Any] = {
            "makespan_seconds": found.makespan_seconds,
            "planned_seconds": found.planned_seconds,
            **({"judged": judged} if judged else {}),
        }
        print_json({"workload": redact(found.workload), **summary, "warnings": warnings, "tasks": tasks})
        return
    if as_csv:
        _print_csv(tasks)
        return
    rows = _task_table(tasks, choose_metrics(tasks, metrics), {"step": lambda task: str(task["step"])}, last="reason")
    console = Console()
    console.print(rows)
    _print_tracebacks(console, tasks)
    _print_waits(console, tasks)
    for warning in warnings:
        console.print(plain(f"warning: {warning}", style="yellow"))
    for text in judged:
        console.print(plain(text), soft_wrap=True)
    if found.makespan_seconds:
        console.print(
            f"planned {show_seconds(found.planned_seconds)}, took {show_seconds(found.makespan_seconds)}", style="dim"
        )


def _print_waits(console: Console, tasks: Iterable[Mapping[str, Any]]) -> None:
    """The tasks whose steps waited for data for a part of their time that is worth doing something about."""
    waited = [f"{task['task']} {task['data_share']:.0%}" for task in tasks if task.get("data_share", 0.0) >= _WAITED]
    if waited:
        said = f"steps waited for data: {show_some(waited)} of their time; `dovetail feed` says what would help"
        console.print(plain(said, style="dim"))


def _print_tracebacks(console: Console, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Where tasks have failed, for the first few; tasks that failed in the same way are told of once."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for task in tasks:
        if text := task.get("traceback"):
            alike.setdefault(text.strip().replace(repr(task["task"]), ""), []).append(task)
    for same in list(alike.values())[:_TRACEBACKS]:
        others = f" and {len(same) - 1} more" if len(same) > 1 else ""
        phase = f", {same[0]['phase']}" if same[0]["phase"] else ""
        console.print(plain(f"\n{same[0]['task']}{others} failed{phase}:", style="red"))
        console.print(plain(same[0]["traceback"].strip(), style="dim"), soft_wrap=True)
    if len(alike) > _TRACEBACKS:
        console.print(f"{len(alike) - _TRACEBACKS} more failed otherwise: dovetail logs TASK", style="dim")


def show_standing(
    rows: Iterable[Mapping[str, Any]],
    *,
    now: float,
    as_json: bool = False,
    as_csv: bool = False,
    sort: str | None = None,
    metrics: Sequence[str] | None = None,
) -> None:
    """Every task of a controller: where it stands, when it should start and end, why it waits, and the last values of
    the metrics that are named."""
    from dovetail.control import clock

    ordered = sort_rows(rows, sort)
    redact = Redactor((row["parameters"] for row in ordered), variables=os.environ)
    shown = redact.record(ordered)
    if as_json:
        print_json(shown)
        return
    if as_csv:
        _print_csv(shown)
        return

    def moment(seconds: float | None) -> str:
        return "" if seconds is None else clock(seconds, now=now)

    columns: dict[str, Callable[[Row], str]] = {
        "step": lambda row: f"{row['step']}/{row['steps']}" if row["steps"] else str(row["step"]),
        "priority": lambda row: f"{row['priority']:g}",
        "start": lambda row: moment(row["start_seconds"]),
        "end": lambda row: moment(row["end_seconds"]),
    }
    Console().print(_task_table(shown, choose_metrics(shown, metrics) if metrics else [], columns, last="why"))


def _task_table(
    rows: Sequence[Row], metrics: Sequence[str], columns: Mapping[str, Callable[[Row], str]], *, last: str
) -> Table:
    """A row for each task: its id, name and status, these columns, the last values of these metrics, and in the end
    the prose that stands under `last`."""
    found = _table("id", "task", "status", *columns, *metrics, last)
    for short, row in zip(shorten_ids([row["id"] for row in rows]), rows, strict=True):
        found.add_row(
            Text(short, style="dim"),
            plain(row["task"]),
            Text(row["status"], style=_COLOURS.get(row["status"], "")),
            *(shown(row) for shown in columns.values()),
            *(f"{row['metrics'][name]:.4g}" if name in row["metrics"] else "" for name in metrics),
            plain(shorten(row[last], most=_MOST_CELL)),
        )
    return found


def plan(found: Plan, *, as_json: bool = False) -> None:
    """Every placement, the bound, and why."""
    assert found.schedule is not None
    tasks = found.workload.tasks if found.workload else ()
    redact = Redactor((task.parameters for task in tasks), variables=os.environ)
    if as_json:
        print_json(redact.record(to_json(found)))
        return
    found, names = redact.plan(found), {task.identity: escape_controls(redact(task.name)) for task in tasks}
    assert found.schedule is not None
    if not found.schedule.placements:
        Console().print("Nothing is left to train.")
    rows = _table("start", "seconds", "task", "technique", "devices")
    for placement in sorted(found.schedule.placements, key=lambda p: (p.start_seconds, p.devices)):
        rows.add_row(
            show_seconds(placement.start_seconds),
            show_seconds(placement.duration_seconds),
            plain(", ".join(names.get(task, task) for task in placement.tasks)),
            placement.option.technique + ("" if placement.option.measured else " (predicted)"),
            ", ".join(placement.devices),
        )
    console = Console()
    console.print(rows)
    for bar in gantt(found.schedule, names=names, width=console.picture_width):
        console.print(bar)
    makespan, bound = found.schedule.makespan_seconds, found.bound_seconds
    if found.objective == "makespan":
        console.print(f"makespan {show_seconds(makespan)}; no schedule takes less than {show_seconds(bound)}")
    else:
        for line in found.verdict:
            console.print(line)
    for line in found.explanation:
        console.print(plain(f"  {line}", style="dim"))
    for line in _rejection_lines(found, names):
        console.print(plain(f"  {line}"))


def _rejection_lines(found: Plan, names: Mapping[TaskId, str]) -> list[str]:
    """What does not fit, each reason once, with the tasks of which it is said."""
    assert found.schedule is not None
    of_family: dict[str, list[str]] = {}
    for placement in found.schedule.placements:
        for family, task in zip(placement.option.measured_families, placement.tasks, strict=True):
            of_family.setdefault(family, []).append(names.get(task, task))
    said: dict[str, list[str]] = {}
    for each in found.rejections:
        line = f"{each.technique} on {each.count} × {each.kind}: {each.reason}"
        said.setdefault(line, []).extend(name for family in set(each.families) for name in of_family.get(family, ()))
    return [
        f"rejected for {show_some(list(dict.fromkeys(tasks)))}: {line}" if tasks else f"rejected: {line}"
        for line, tasks in said.items()
    ]


def show_timetables(found: Iterable["PipelineDrawing"]) -> None:
    """Who computes which microbatch when, planned above measured."""
    from dovetail.web.timetable_charts import KEY

    found, console = list(found), Console()
    if not found:
        console.print("Nothing to draw: no task was planned as a pipeline, or has saved as one.")
        return
    for one in found:
        for line in one.lines(columns=max(40, console.picture_width - _RANK_COLUMNS)):
            console.print(plain(line), soft_wrap=True)
    console.print(Text(KEY, style="dim"))


def show_profiles(found: Iterable[tuple[str, Profile]], *, layers: bool = False, as_json: bool = False) -> None:
    """What was measured, a row for each family and count; `found` pairs each with the tasks it stands for."""
    found = list(found)
    if as_json:
        print_json([{"tasks": name, **_record(profile)} for name, profile in found])
        return
    rows = _table("tasks", "devices", "step", "evaluation", "peak", "parameters", "optimizer", "layers")
    for name, one in found:
        rows.add_row(
            plain(name),
            f"{one.count} × {one.kind}",
            show_seconds(one.step_seconds),
            show_seconds(one.evaluate_seconds) if one.evaluate_seconds else "",
            show_bytes(one.peak_bytes),
            show_bytes(one.parameter_bytes),
            show_bytes(one.optimizer_bytes),
            str(len(one.layers)),
        )
    console = Console()
    console.print(rows)
    for name, one in found if layers else ():
        if one.layers:
            console.print(plain(f"\n{name} on {one.kind}"))
            console.print(_layer_table(one))


def cluster(found: Cluster, *, as_json: bool = False) -> None:
    """The devices of a cluster."""
    if as_json:
        print_json(to_json(found))
        return
    rows = _table("devices", "kind", "memory", "matrix", "memory rate")
    for kind, count in found.counts():
        rows.add_row(
            str(count),
            kind.name,
            show_bytes(kind.memory_bytes) if kind.memory_bytes else "the host's",
            f"{kind.matrix_flops_per_second / 1e9:,.1f} GFLOP/s" if kind.matrix_flops_per_second else "not measured",
            f"{show_bytes(kind.memory_bytes_per_second)}/s" if kind.memory_bytes_per_second else "not measured",
        )
    console = Console()
    console.print(rows)
    for node in found.nodes:
        speed = node.update_parameters_per_second
        updates = f", {speed / 1e9:.2f} billion AdamW updates a second" if speed else ""
        console.print(f"{node.name}: {node.cores} cores, {show_bytes(node.memory_bytes)} of memory{updates}")
    for link in found.links:
        rate, latency = show_bytes(link.bytes_per_second), show_seconds(link.latency_seconds)
        console.print(f"{link.source} → {link.target}: {rate}/s, {latency} latency")


def show_nodes(found: "Sequence[NodeStanding]", past: "Sequence[Attendance]", *, as_json: bool = False) -> None:
    """The nodes of a Ray cluster, and those of a store's newest run."""
    from dovetail.describe.markets import show_time

    def moment(seconds: float) -> str | None:
        return show_time(seconds) if seconds < math.inf else None

    now: list[dict[str, Any]] = [
        {
            "node": each.name,
            "devices": each.devices,
            "kind": each.kind,
            "leaves": moment(each.leaves_seconds),
            "prices": {str(market): price for market, price in each.prices},
        }
        for each in found
    ]
    then: list[dict[str, Any]] = [
        {
            "node": each.node,
            "status": each.status,
            "joined": moment(each.joined_seconds),
            "notice": moment(each.notice_seconds),
            "left": moment(each.left_seconds),
            "reason": each.reason,
        }
        for each in past
    ]
    if as_json:
        print_json({"nodes": now, "last_run": then})
        return
    rows, console = _table("node", "devices", "kind", "leaves", "price an hour"), Console()
    for one in now:
        prices = "; ".join(f"{price:g} {market}" for market, price in one["prices"].items())
        rows.add_row(one["node"], str(one["devices"]), plain(one["kind"]), one["leaves"] or "stays", plain(prices))
    console.print(rows)
    if then:
        rows = _table("in the last run", "status", "joined", "notice", "left", "reason")
        for past_node in then:
            rows.add_row(*(plain(each or "") for each in past_node.values()))
        console.print(rows)


def _layer_table(profile: Profile) -> Table:
    rows = _table("layer", "operation", "forward", "backward", "activations", "parameters")
    for layer in profile.layers:
        rows.add_row(
            plain(layer.name),
            layer.operation,
            show_seconds(layer.forward_seconds),
            show_seconds(layer.backward_seconds),
            show_bytes(layer.activation_bytes),
            show_bytes(layer.parameter_bytes),
        )
    return rows


def _table(*names: str) -> Table:
    rows = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        # Folded, not cut: the end of a long word in a reason may be what matters. A Text, for metrics named [so].
        rows.add_column(plain(name), overflow="fold")
    return rows


def _record(profile: Profile) -> dict[str, Any]:
    found = to_json(profile)
    assert isinstance(found, dict)
    return found


def _print_csv(rows: Sequence[Row]) -> None:
    text = to_csv(rows)
    sys.stdout.write(escape_controls(text.replace("\r\n", "\n")) if sys.stdout.isatty() else text)


def print_json(value: Any) -> None:
    """Plain data for scripts."""
    Console().print_json(json.dumps(_strict(value), allow_nan=False), highlight=False)


def _strict(value: Any) -> Any:
    """Without what JSON cannot spell: a number that is not finite becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value
