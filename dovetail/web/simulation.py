"""A simulation as one HTML page, offline: completion times, utilisation and fairness over time, and the figures."""

import string
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dovetail.control.simulation.outcome import Outcome
from dovetail.store import write_atomically
from dovetail.vocabulary import DovetailError
from dovetail.web.charts import PALETTE
from dovetail.web.report import _asset, _embedded, _plotly, _policy

_MOST_POINTS = 400
_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const ink = dark ? "#e6e6e6" : "#1b1b1b", line = dark ? "#444444" : "#dddddd";
for (const [name, figure] of Object.entries(data)) {
  const axis = (title, more) => ({title: {text: title}, gridcolor: line, zerolinecolor: line, ...more});
  Plotly.newPlot(name, figure.traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink}, height: 360,
    margin: {l: 60, r: 20, t: 10, b: 50}, legend: {orientation: "h", y: -0.25},
    xaxis: axis(figure.x, {}), yaxis: axis(figure.y, {range: [0, 1.02]}),
  }, {
    // plotly.js has a button, on unless refused, that uploads the chart's data to its makers.
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendDataToCloud", "sendChartToCloud"],
  });
}
"""


def write_simulation(found: Sequence[tuple[str, Outcome]], path: Path, *, title: str) -> Path:
    """Write these outcomes, each with its name, as one HTML page; gives its path.

    >>> import tempfile
    >>> outcome = Outcome(seconds={"a": 3600.0}, makespan_seconds=7200.0, starts=1, lost=0, busy=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_simulation([("max_min_fairness", outcome)], Path(folder) / "page.html", title="one").name
    'page.html'
    """
    plotly = _plotly()
    page = string.Template(_asset("page.html")).substitute(
        policy=escape(_policy([plotly, _SCRIPT])),
        title=escape(title),
        about="simulated",
        style=_asset("style.css"),
        tiles="",
        sections="\n".join([*(_section(name, heading) for name, heading in _CHARTS.items()), _table(found)]),
        data=_embedded(_figures(found)),
        plotly=plotly,
        script=_SCRIPT,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except OSError as error:
        raise DovetailError(f"the page must be written to a file this user can write; found: {error}.") from error
    return path


_CHARTS = {
    "completion": "Tasks that ended within so many hours of their arrival",
    "utilisation": "Devices in use",
    "fairness": "Fairness: Jain's index of what the tasks that were there got done",
}


def _figures(found: Sequence[tuple[str, Outcome]]) -> dict[str, Any]:
    charts: dict[str, tuple[str, str, list[Sequence[tuple[float, float]]]]] = {
        "completion": ("hours from arrival to end", "share of tasks", [_completions(each) for _, each in found]),
        "utilisation": ("hours", "share of devices", [each.utilisation for _, each in found]),
        "fairness": ("hours", "index", [each.fairness for _, each in found]),
    }
    return {
        chart: {
            "x": x,
            "y": y,
            "traces": [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": escape(name, quote=False),
                    "line": {"color": PALETTE[number % len(PALETTE)][0]},
                    "x": [seconds / 3600 for seconds, _ in series],
                    "y": [value for _, value in series],
                }
                for number, ((name, _), series) in enumerate(zip(found, lines, strict=True))
            ],
        }
        for chart, (x, y, lines) in charts.items()
    }


def _completions(outcome: Outcome) -> list[tuple[float, float]]:
    """The share of tasks that ended within a time, at not too many times."""
    seconds = sorted(outcome.seconds.values())
    every = max(1, len(seconds) // _MOST_POINTS)
    places = [*range(0, len(seconds), every), len(seconds) - 1]
    return [(seconds[place], (place + 1) / len(seconds)) for place in places]


def _section(name: str, heading: str) -> str:
    return f'<section><h2>{escape(heading)}</h2><div id="{name}"></div></section>'


def _table(found: Sequence[tuple[str, Outcome]]) -> str:
    heads = ("policy", "mean", "median", "99%", "makespan", "busy", "starts", "lost", "late")
    rows = [
        (
            name,
            *(f"{hours:.2f} h" for hours in (each.mean_hours, each.quantile_hours(0.5), each.quantile_hours(0.99))),
            f"{each.makespan_hours:.2f} h",
            f"{each.busy:.0%}",
            f"{each.starts:,}",
            f"{each.lost:,}",
            f"{len(each.missed):,}",
        )
        for name, each in found
    ]
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<section><h2>Figures</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
