"""The report: one HTML file that shows everything, offline, without a network reference of any kind.

plotly.js and the styles are inside. A content security policy lets only this page's own scripts run, by their
digests, and forbids every load; should an escape ever be missed, a task's name still could not run or fetch anything.
"""

import base64
import hashlib
import json
import platform
import string
import time
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from dovetail.metrics.spans import busy_share
from dovetail.store import Store, write_atomically
from dovetail.vocabulary import DovetailError, Plan
from dovetail.vocabulary.units import show_bytes, show_seconds
from dovetail.web import charts, experiment, tables
from dovetail.web.report_data import MOST_CURVES, MOST_TIMETABLES, ReportData, read
from dovetail.web.tables import show_moment
from dovetail.web.timetable_charts import KEY

_MOST_LINES = 400
_FOLDED_ABOVE = 12


def write_report(store: Store, path: Path, *, workload: str | None = None) -> Path:
    """Write what the store knows of one workload, or of all, as one HTML page; gives its path.

    >>> import tempfile
    >>> with Store(None, write=True) as store, tempfile.TemporaryDirectory() as folder:
    ...     write_report(store, Path(folder) / "report.html").name
    'report.html'
    """
    page = render(read(store, workload=workload), written_seconds=time.time())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Logs may hold bytes that were no text; they become question marks.
        write_atomically(path, page.encode("utf-8", errors="replace"))
    except OSError as error:
        raise DovetailError(f"the report must be written to a file this user can write; found: {error}.") from error
    return path


def render(reading: ReportData, *, written_seconds: float) -> str:
    """The report as the text of one HTML page."""
    script, plotly = _asset("report.js"), _plotly()
    figure, gantt_notes = charts.gantt(reading)
    data = {
        "gantt": figure,
        "metrics": charts.curve_data(reading),
        "outcomes": experiment.outcomes(reading),
        "predictions": charts.predictions(reading),
    }
    title = reading.workload or "nothing yet"
    sections = [
        _schedule_section(reading, figure, gantt_notes),
        _curves_section(reading),
        _experiment_section(reading),
        _section("tasks", "Tasks", tables.task_table(reading)),
        _section("targets", "Time to target", tables.target_table(reading)) if reading.targets else "",
        _section("time", "Where the time went", tables.account_table(reading.account))
        if reading.account.seconds
        else "",
        _predictions_section(reading),
        _timetables_section(reading),
        _plan_section(reading),
        _incidents_section(reading),
    ]
    return string.Template(_asset("page.html")).substitute(
        policy=escape(_policy([plotly, script])),
        title=escape(title),
        about=_about(reading, written_seconds),
        style=_asset("style.css"),
        tiles=_tiles(reading),
        sections="\n".join(filter(None, sections)),
        data=_embedded(data),
        plotly=plotly,
        script=script,
    )


def _asset(name: str) -> str:
    return resources.files("dovetail.web").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # here, so that `dovetail --help` does not wait for it

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _policy(scripts: list[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Forms and base addresses are not covered by default-src.
    closed = "default-src 'none'; form-action 'none'; base-uri 'none'"
    return f"{closed}; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _embedded(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _about(reading: ReportData, written_seconds: float) -> str:
    parts = [f"written {show_moment(written_seconds)}"]
    if reading.as_of_seconds:
        parts.insert(0, f"last news {show_moment(reading.as_of_seconds)}")
    return escape(" · ".join([_machine(reading), *parts]))


def _machine(reading: ReportData) -> str:
    cluster = reading.cluster
    if cluster is None:
        return f"{platform.node()} ({platform.system()}, {platform.machine()})"
    kinds = " + ".join(f"{count} × {kind.name}" for kind, count in cluster.counts())
    cores, memory = sum(node.cores for node in cluster.nodes), sum(node.memory_bytes for node in cluster.nodes)
    nodes = cluster.nodes[0].name if len(cluster.nodes) == 1 else f"{len(cluster.nodes)} nodes"
    return f"{nodes}: {kinds}, {cores} cores, {show_bytes(memory)}"


def _tiles(reading: ReportData) -> str:
    counts, comparison = reading.summary.counts, reading.comparison
    bad = counts["failed"]
    tiles = [
        ("Finished", f"{counts['finished']:,}", _others(reading), ""),
        ("Failed", f"{bad:,}", "see the end of this page" if bad else "", "bad" if bad else ""),
        ("Planned", _duration(comparison.planned_seconds), _plans_made(reading), ""),
        ("Measured", _duration(comparison.measured_seconds), _measured_detail(reading), ""),
        ("Prediction", _ratio(comparison.median_ratio), "median measured ÷ predicted", ""),
        ("Devices", f"{len(reading.devices):,}", _busy(reading), ""),
    ]
    return "\n".join(_tile(*tile) for tile in tiles)


def _tile(name: str, value: str, detail: str, kind: str) -> str:
    return (
        f'<div class="tile {kind}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><small>{escape(detail)}</small></div>'
    )


def _others(reading: ReportData) -> str:
    counts = reading.summary.counts
    found = [
        f"{count:,} {status}" for status, count in counts.items() if count and status not in ("finished", "failed")
    ]
    return ", ".join([f"of {reading.summary.total:,} tasks", *found])


def _plans_made(reading: ReportData) -> str:
    if not reading.plans:
        return "no plan yet"
    again = len(reading.plans) - 1
    return "by the first plan" + (f", re-planned {again:,} ×" if again else "")


def _measured_detail(reading: ReportData) -> str:
    comparison = reading.comparison
    if comparison.measured_seconds is None:
        return "nothing has run yet"
    parts = [] if reading.summary.ended else ["so far"]
    if comparison.active_seconds < 0.95 * comparison.measured_seconds:
        parts.append(f"{show_seconds(comparison.active_seconds)} without pauses")
    elif comparison.makespan_ratio is not None and reading.summary.ended:
        parts.append(f"{comparison.makespan_ratio:.2f} × planned")
    return ", ".join(parts) or "from first start to last end"


def _busy(reading: ReportData) -> str:
    share = busy_share(reading.measured, devices=len(reading.devices), seconds=reading.comparison.active_seconds)
    return "" if share is None else f"{share:.0%} busy"


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else show_seconds(seconds)


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _section(anchor: str, title: str, markup: str) -> str:
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{markup}</section>'


def _schedule_section(reading: ReportData, figure: charts.Figure | None, notes: list[str]) -> str:
    if figure is None:
        return _section("schedule", "Schedule", tables.note("Nothing has been planned or started yet."))
    key = (
        '<span class="key"><i class="outline"></i>planned</span><span class="key"><i class="filled"></i>measured</span>'
        '<span class="key"><i class="hatched"></i>running or interrupted</span>'
    )
    choice = _choice("plan", [("first", "First plan"), ("latest", "Latest plan")]) if len(reading.planned) > 1 else ""
    drawn = f'<div class="controls">{choice}{key}</div><div class="chart" id="gantt"></div>'
    return _section("schedule", "Schedule", drawn + "".join(map(tables.note, notes)))


def _curves_section(reading: ReportData) -> str:
    if not reading.metrics:
        return _section("curves", "Curves", tables.note("No metric has been measured yet."))
    options = "".join(f'<option value="{place}">{escape(m.name)}</option>' for place, m in enumerate(reading.metrics))
    controls = f'<label>Metric <select id="metric">{options}</select></label>'
    controls += _choice("over", [("steps", "Steps"), ("trained", "Training time"), ("wall", "Wall clock")])
    controls += '<label><input type="checkbox" id="logarithmic"> logarithmic</label>'
    controls += '<label>Smoothing <input type="range" id="smoothing" min="0" max="0.98" step="0.02" value="0"></label>'
    groups = experiment.seed_groups(reading)
    if len(set(groups.values())) < len(groups):
        controls += '<label><input type="checkbox" id="bands"> seeds as bands</label>'
    if any(experiment.robust_range(metric) for metric in reading.metrics):
        controls += '<label><input type="checkbox" id="robust" checked> without runaways</label>'
    most = max(metric.total for metric in reading.metrics)
    cut = f" Of {most:,} tasks, the {MOST_CURVES} with the best values are drawn." if most > MOST_CURVES else ""
    return _section(
        "curves",
        "Curves",
        f'<div class="controls">{controls}</div><div class="chart" id="curves-chart"></div>'
        + tables.note(f"Click a name to hide its curve, double-click to see it alone.{cut}"),
    )


def _experiment_section(reading: ReportData) -> str:
    """Metrics against parameters, all parameters at once, and who was best."""
    found = experiment.outcomes(reading)
    if found is None:
        return ""
    outcomes = [metric["name"] for metric in found["metrics"]]
    controls = _select("outcome", "Metric", outcomes) + _select("parameter", "against", found["parameters"])
    drawn = (
        f'<div class="controls">{controls}</div><div class="chart" id="against-chart"></div>'
        '<h3>All parameters at once</h3><div class="chart" id="parallel-chart"></div>'
    )
    said = tables.note(
        "Each task, here a line, with the best value that it had: the best are blue, the worst orange. Drag over an "
        "axis to keep the tasks that pass there, again to keep fewer; double-click to see all."
    )
    return _section("experiment", "Experiment", drawn + said + f"<h3>Ranking</h3>{experiment.ranking(reading)}")


def _select(name: str, title: str, options: list[str]) -> str:
    listed = "".join(f'<option value="{place}">{escape(text)}</option>' for place, text in enumerate(options))
    return f'<label>{title} <select id="{name}">{listed}</select></label>'


def _choice(name: str, options: list[tuple[str, str]]) -> str:
    """A row of radio buttons that looks like one control."""
    return "".join(
        [
            '<span class="choice" role="radiogroup">',
            *(
                f'<label><input type="radio" name="{name}" value="{value}"{" checked" if not place else ""}>'
                f"<span>{escape(text)}</span></label>"
                for place, (value, text) in enumerate(options)
            ),
            "</span>",
        ]
    )


def _predictions_section(reading: ReportData) -> str:
    excluded = tables.note(tables.excluded_note(reading.comparison))
    if not reading.comparison.spans:
        return _section("predictions", "Prediction and measurement", tables.note("Nothing to compare yet.") + excluded)
    listed = tables.folded(f"All {len(reading.comparison.spans):,} compared", tables.comparison_table(reading))
    return _section(
        "predictions",
        "Prediction and measurement",
        f'<div class="chart" id="predictions-chart"></div>{excluded}{listed}',
    )


def _timetables_section(reading: ReportData) -> str:
    if not reading.timetables:
        return ""
    drawn = "".join(each.markup() for each in reading.timetables)
    cut = (
        f" The first {MOST_TIMETABLES} pipelined tasks are drawn." if len(reading.timetables) == MOST_TIMETABLES else ""
    )
    return _section("timetables", "Who computes which microbatch when", tables.note(KEY + cut) + drawn)


def _plan_section(reading: ReportData) -> str:
    if reading.last_plan is None:
        return ""
    number, at_seconds, plan = reading.last_plan
    made = tables.note(f"Plan {number}, made {show_moment(at_seconds)}.{_bound(plan)}")
    return _section("plan", "Why this plan", made + _explanation(plan) + _rejections(reading, plan))


def _bound(plan: Plan) -> str:
    if plan.schedule is None or plan.bound_seconds <= 0:
        return ""
    return (
        f" Its makespan is {show_seconds(plan.schedule.makespan_seconds)}; nothing can take less than "
        f"{show_seconds(plan.bound_seconds)}, so it is at most {plan.gap:.0%} longer than need be."
    )


def _explanation(plan: Plan) -> str:
    if not plan.explanation:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in plan.explanation[:_MOST_LINES])
    rest = len(plan.explanation) - _MOST_LINES
    listed = f'<ul class="lines">{lines}</ul>' + tables.note(f"And {rest:,} more." if rest > 0 else "")
    few = len(plan.explanation) <= _FOLDED_ABOVE
    return listed if few else tables.folded(f"{len(plan.explanation):,} lines of explanation", listed)


def _rejections(reading: ReportData, plan: Plan) -> str:
    if not plan.rejections:
        return ""
    few = len(plan.rejections) <= _FOLDED_ABOVE
    listed = tables.rejection_table(reading, plan.rejections)
    return f"<h3>What does not fit</h3>{listed if few else tables.folded(f'{len(plan.rejections):,} options', listed)}"


def _incidents_section(reading: ReportData) -> str:
    if not reading.incidents:
        return ""
    listed = tables.incident_list(reading.incidents, total=reading.incidents_total)
    return _section("incidents", "Warnings and failures", listed)
