"""The report's tables and lists as HTML. Whatever comes from a user goes through `escape`, here and nowhere else."""

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from dovetail.metrics.account import CAUSES, Account
from dovetail.metrics.comparison import Comparison
from dovetail.metrics.summary import MetricValues, Row
from dovetail.metrics.targets import TargetReached
from dovetail.vocabulary import Rejection
from dovetail.vocabulary.units import show_bytes, show_seconds, show_some
from dovetail.web.report_data import Incident, ReportData

MOST_ROWS = 1000
MOST_METRICS = 4
MOST_COMPARED = 200
MOST_REJECTIONS = 200
_LONGEST_PARAMETERS = 240
# So many names are written out.
# Each status has a sign of its own, so that none is told by colour alone.
SIGNS = {
    "pending": "○",
    "running": "◐",
    "resting": "◌",
    "paused": "‖",
    "finished": "✓",
    "halved": "◒",
    "failed": "✕",
    "cancelled": "–",
}
_FIRST_WHEN_CUT = ("failed", "running", "finished")

# The simulated engine's clock starts at zero; no store is older than this.
_SIMULATED_BELOW = 1e8


def cell(text: object, *, sort: object = None, kind: str = "") -> str:
    """One escaped table cell; `sort` is what it sorts by where that is not its text.

    >>> cell("<b>", sort=2, kind="number")
    '<td class="number" data-sort="2">&lt;b&gt;</td>'
    """
    return raw_cell(escape(str(text)), sort=sort, kind=kind)


def raw_cell(markup: str, *, sort: object = None, kind: str = "") -> str:
    """One table cell of markup that is already safe.

    >>> raw_cell("<i>a</i>")
    '<td><i>a</i></td>'
    """
    attributes = f' class="{kind}"' if kind else ""
    if sort is not None:
        attributes += f' data-sort="{escape(str(sort))}"'
    return f"<td{attributes}>{markup}</td>"


def table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """A sortable table of ready cells; `heads` are (title, class).

    >>> "<button>Task</button>" in table([("Task", "")], [[cell("a")]])
    True
    """
    head = "".join(
        f'<th scope="col"{f" class={kind!r}" if kind else ""}><button>{escape(title)}</button></th>'
        for title, kind in heads
    )
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def note(text: str) -> str:
    """A muted paragraph; nothing for no text.

    >>> note("3 < 4"), note("")
    ('<p class="note">3 &lt; 4</p>', '')
    """
    return f'<p class="note">{escape(text)}</p>' if text else ""


def folded(title: str, markup: str) -> str:
    """Markup that unfolds on a click.

    >>> folded("More", "<p>a</p>")
    '<details><summary>More</summary><p>a</p></details>'
    """
    return f"<details><summary>{escape(title)}</summary>{markup}</details>"


def task_table(reading: ReportData) -> str:
    """Every task: status, steps, time, metrics, and what it was given."""
    rows, metrics = reading.summary.rows, reading.summary.metrics[:MOST_METRICS]
    if not rows:
        return note("No task has been described yet.")
    varied = _varied(rows)
    shown = _most_telling(rows)
    heads = [("Task", ""), ("Status", ""), ("Steps", "number"), ("Trained", "number"), ("Attempts", "number")]
    heads += [(name, "number") for name in metrics]
    made = table(heads, [_task_cells(reading, row, varied, metrics) for row in shown])
    return _shared_parameters(rows, varied) + made + note(_left_out(reading, len(shown)))


def target_table(reading: ReportData) -> str:
    """Time to target, for the tasks that have one."""
    heads = [("Task", ""), ("Target", ""), ("Reached with", "number"), ("Steps", "number")]
    heads += [("Training time", "number"), ("Wall time", "number")]
    shown = sorted(reading.targets, key=lambda one: one.reached.trained_seconds if one.reached else math.inf)
    rows = [
        [cell(reading.name(one.task), kind="name"), cell(one.target, kind="short"), *_reached(one.reached)]
        for one in shown[:MOST_ROWS]
    ]
    return table(heads, rows) + note(_cut(len(shown), MOST_ROWS, "targets", "soonest reached first"))


def account_table(account: Account) -> str:
    """Device time by cause; the causes add up to the whole."""
    heads = [("Cause", ""), ("Device time", "number"), ("Share", "number"), ("What that is", "")]
    rows = [
        [
            cell(cause),
            _seconds(account.seconds[cause]),
            cell(f"{account.share(cause):.1%}", sort=account.share(cause), kind="number"),
            cell(meaning),
        ]
        for cause, meaning in CAUSES.items()
        if account.seconds.get(cause)
    ]
    whole = f"{show_seconds(account.whole_seconds)} on {account.devices:,} devices, pauses between runs left out."
    return table(heads, rows) + note(whole)


def comparison_table(reading: ReportData) -> str:
    """Spans with what was predicted of them, those that were furthest off first."""
    comparison = reading.comparison
    spans = sorted(comparison.spans, key=lambda span: -abs(math.log(max(span.ratio, 1e-9))))
    heads = [("Task", ""), ("Technique", ""), ("Devices", ""), ("Steps", "number")]
    heads += [("Predicted", "number"), ("Measured", "number"), ("Ratio", "number")]
    rows = [
        [
            cell(reading.name(span.task), kind="name"),
            cell(reading.techniques.get((span.task, span.placement), "")),
            cell(", ".join(span.devices), kind="name"),
            cell(f"{span.steps:,}", sort=span.steps, kind="number"),
            _seconds(span.predicted_seconds),
            _seconds(span.measured_seconds),
            cell(f"{span.ratio:.2f}", sort=span.ratio, kind="number"),
        ]
        for span in spans[:MOST_COMPARED]
    ]
    return table(heads, rows) + note(_cut(len(spans), MOST_COMPARED, "spans", "furthest from 1 first"))


def excluded_note(comparison: Comparison) -> str:
    """Which spans are not compared, and why.

    >>> excluded_note(Comparison(interrupted=2, running=1))
    'Not compared: 2 that ended before their last step, 1 still running.'
    """
    parts = (
        (comparison.interrupted, "that ended before their last step"),
        (comparison.running, "still running"),
        (comparison.unpredicted, "without a prediction"),
    )
    found = [f"{count:,} {why}" for count, why in parts if count]
    return f"Not compared: {', '.join(found)}." if found else ""


def rejection_table(reading: ReportData, rejections: Sequence[Rejection]) -> str:
    """What does not fit, with the reason."""
    members: dict[str, list[str]] = {}
    for one in reading.progress.values():
        family = one.fingerprint.family if one.fingerprint else None
        if family:
            members.setdefault(family, []).append(reading.name(one.task))
    heads = [("Tasks", ""), ("Technique", ""), ("Devices", ""), ("Needs", "number"), ("Free", "number"), ("Reason", "")]
    rows = [
        [
            cell(show_some([name for family in one.families for name in members.get(family, [family])]), kind="name"),
            cell(one.technique),
            cell(f"{one.count} × {one.kind}", kind="short"),
            _bytes(one.needed_bytes),
            _bytes(one.free_bytes),
            cell(one.reason, kind="prose"),
        ]
        for one in rejections[:MOST_REJECTIONS]
    ]
    return table(heads, rows) + note(_cut(len(rejections), MOST_REJECTIONS, "rejected options", ""))


def incident_list(incidents: Sequence[Incident], *, total: int) -> str:
    """Warnings, losses and failures, the newest first, each with the end of its log."""
    items = "\n".join(_incident(one) for one in reversed(incidents))
    return f'<ol class="incidents">{items}</ol>' + note(_cut(total, len(incidents), "incidents", "newest first"))


def _incident(one: Incident) -> str:
    who = f"{one.task}, attempt {one.attempt}" if one.task and one.attempt else one.task
    about = f'<span class="who">{escape(who)}</span>' if who else ""
    head = f'<span class="chip {one.kind}">{escape(one.kind.replace("_", " "))}</span>{about}'
    log = folded("End of the log", f"<pre>{escape(one.log)}</pre>") if one.log else ""
    when = f"<time>{escape(show_moment(one.at_seconds))}</time>"
    return f'<li><div class="line">{head}{when}</div><p>{escape(one.reason)}</p>{log}</li>'


def _task_cells(reading: ReportData, row: Row, varied: set[str], metrics: Sequence[str]) -> list[str]:
    given = _parameters({name: value for name, value in row.parameters.items() if name in varied})
    name = f"<b>{escape(reading.name(row.task))}</b>" + (f"<small>{escape(given)}</small>" if given else "")
    status = f'<span class="chip {row.status}">{SIGNS.get(row.status, "")} {escape(row.status)}</span>'
    status += f"<small>{escape(row.reason)}</small>" if row.reason else ""
    return [
        raw_cell(name, sort=row.name, kind="name"),
        raw_cell(status, sort=row.status, kind="status"),
        raw_cell(_steps(row), sort=row.step, kind="number"),
        _seconds(row.trained_seconds),
        raw_cell(_attempts(row), sort=row.attempts, kind="number"),
        *(_metric(row.metrics.get(name)) for name in metrics),
    ]


def _reached(reached: TargetReached | None) -> list[str]:
    if reached is None:
        return [cell("not reached", sort="", kind="number muted"), *(cell("", kind="number") for _ in range(3))]
    step = cell(f"{reached.step:,}", sort=reached.step, kind="number")
    return [_number(reached.value), step, _seconds(reached.trained_seconds), _seconds(reached.wall_seconds)]


def _attempts(row: Row) -> str:
    return f"{row.attempts}" + (
        f"<small>{row.former_attempts} before it began anew</small>" if row.former_attempts else ""
    )


def _steps(row: Row) -> str:
    of = f'<span class="muted"> / {row.last_step:,}</span>' if row.last_step else ""
    share = row.done_share
    bar = f'<span class="bar"><i style="width:{share:.0%}"></i></span>' if share is not None else ""
    return f"{row.step:,}{of}{bar}"


def _metric(values: MetricValues | None) -> str:
    if values is None:
        return cell("", kind="number")
    sort = values.last if values.best is None else values.best
    best = f"<small>best {values.best:.4g} at {values.best_step:,}</small>" if values.best is not None else ""
    last = f"{values.last:.4g}" if math.isfinite(values.last) else f'<span class="bad">{values.last}</span>'
    return raw_cell(last + best, sort=sort if math.isfinite(sort) else "", kind="number")


def _varied(rows: Sequence[Row]) -> set[str]:
    """The parameters in which tasks differ; of a single task, all."""
    names = {name for row in rows for name in row.parameters}
    if len(rows) == 1:
        return names
    return {name for name in names if len({_show(row.parameters.get(name, ...)) for row in rows}) > 1}


def _shared_parameters(rows: Sequence[Row], varied: set[str]) -> str:
    shared = _parameters({name: value for name, value in rows[0].parameters.items() if name not in varied})
    return note(f"The same for all: {shared}") if shared else ""


def _parameters(parameters: Mapping[str, Any]) -> str:
    text = "   ".join(f"{name}={_show(value)}" for name, value in parameters.items())
    return text if len(text) <= _LONGEST_PARAMETERS else text[:_LONGEST_PARAMETERS] + "…"


def _show(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=repr) if isinstance(value, dict | list) else repr(value)


def _most_telling(rows: Sequence[Row]) -> list[Row]:
    if len(rows) <= MOST_ROWS:
        return list(rows)
    order = {status: place for place, status in enumerate(_FIRST_WHEN_CUT)}
    return sorted(rows, key=lambda row: order.get(row.status, len(order)))[:MOST_ROWS]


def _left_out(reading: ReportData, shown: int) -> str:
    extra = reading.summary.metrics[MOST_METRICS:]
    also = f"Also measured, see the curves: {show_some(list(extra))}." if extra else ""
    return " ".join(
        filter(None, [_cut(len(reading.summary.rows), shown, "tasks", "failed and running ones first"), also])
    )


def _cut(total: int, shown: int, what: str, order: str) -> str:
    if total <= shown:
        return ""
    return f"Shown are {shown:,} of {total:,} {what}" + (f", {order}." if order else ".")


def _seconds(seconds: float) -> str:
    return cell(show_seconds(seconds) if seconds else "–", sort=seconds, kind="number")


def _bytes(count: int) -> str:
    return cell(show_bytes(count) if count else "–", sort=count, kind="number")


def _number(value: float) -> str:
    return cell(f"{value:.4g}", sort=value if math.isfinite(value) else "", kind="number")


def show_moment(at_seconds: float, *, zone: datetime.tzinfo | None = None) -> str:
    """A moment in this machine's time zone, or in `zone`; seconds of a simulated clock as what they are.

    >>> show_moment(1767225600.0, zone=datetime.UTC), show_moment(90.0)
    ('2026-01-01 00:00 UTC', 't = 90 s')
    """
    if at_seconds < _SIMULATED_BELOW:
        return f"t = {at_seconds:g} s"
    moment = datetime.datetime.fromtimestamp(at_seconds, tz=datetime.UTC).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M %Z")
