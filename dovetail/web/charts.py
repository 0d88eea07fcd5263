"""The charts, as plain data for plotly.js. Colours that depend on light or dark are put in by report.js.

Text in a plotly chart may carry a few HTML tags, so names are escaped here too; quotes are left, since plotly.js
shows their entities as they are.
"""

import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.metrics.curves import Curve
from dovetail.metrics.spans import Bar, trained_seconds
from dovetail.vocabulary import TaskId
from dovetail.vocabulary.units import show_seconds
from dovetail.web.experiment import labels_of, robust_range, seed_groups
from dovetail.web.report_data import ReportData

# Okabe and Ito's colours for all kinds of colour vision, without black and yellow, which vanish on one of the two
# backgrounds; each with the text colour that is readable on it.
PALETTE = (
    ("#0072B2", "#ffffff"),
    ("#E69F00", "#1b1b1b"),
    ("#009E73", "#ffffff"),
    ("#CC79A7", "#1b1b1b"),
    ("#56B4E9", "#1b1b1b"),
    ("#D55E00", "#ffffff"),
    ("#8C8C8C", "#1b1b1b"),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_HATCHES = {"running": "/", "interrupted": "x", "discarded": "."}
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
MOST_BARS = 1500
MOST_DEVICES = 48
MOST_DOTS = 2000

Figure = dict[str, Any]


def gantt(reading: ReportData) -> tuple[Figure | None, list[str]]:
    """Planned (outlined) above measured (filled) for each device, with notes on what is left out."""
    bars = {**reading.planned, "measured": reading.measured}
    devices, notes = _shown_devices(reading, bars)
    if not devices:
        return None, []
    lanes = {device: float(place) for place, device in enumerate(devices)}
    longest = max(bar.end_seconds for group in bars.values() for bar in group) - reading.origin_seconds
    divisor, unit = time_unit(longest)
    traces: list[Figure] = []
    for kind, group in bars.items():
        pieces = [(bar, lanes[device]) for bar in group for device in bar.devices if device in lanes]
        if len(pieces) > MOST_BARS:
            whose = "measured bars" if kind == "measured" else f"bars of the {kind} plan"
            notes.append(f"Of {len(pieces):,} {whose} the first {MOST_BARS:,} are drawn.")
        traces += _gantt_traces(reading, kind, pieces[:MOST_BARS], divisor)
    title = f"{unit} since the first {'plan' if reading.plans else 'start'}"
    layout = _gantt_layout(devices, title + " after all was begun anew" * reading.begun_anew)
    if earlier := [bar for bar in reading.measured if bar.end_seconds <= reading.origin_seconds]:
        # What ran days before would leave no room for what runs now.
        layout["xaxis"] |= {"range": [0.0, _round(longest / divisor)]}
        notes.append(f"Left of 0 lie {len(earlier):,} earlier placements: double-click the chart to see them.")
    return {"data": traces, "layout": layout}, notes


def curve_data(reading: ReportData) -> list[dict[str, Any]]:
    """Every metric with its curves, each over steps, seconds of training and seconds on the wall; and the range of its
    values without those that run away, where some do."""
    labels, groups = labels_of(reading), seed_groups(reading)
    return [
        {
            "name": metric.name,
            "goal": metric.goal,
            "total": metric.total,
            "range": robust_range(metric),
            "curves": [
                _curve_data(reading, task, curve)
                | {"name": label(labels.get(task, task)), "group": label(groups.get(task, labels.get(task, task)))}
                for task, curve in metric.curves.items()
            ],
        }
        for metric in reading.metrics
    ]


def predictions(reading: ReportData) -> Figure | None:
    """Measured over predicted seconds of every span that can be judged, one colour and symbol a technique."""
    spans = reading.comparison.spans[:MOST_DOTS]
    if not spans:
        return None
    by_technique: dict[str, list[Any]] = {}
    for span in spans:
        by_technique.setdefault(reading.techniques.get((span.task, span.placement)) or "unknown", []).append(span)
    seconds = [value for span in spans for value in (span.predicted_seconds, span.measured_seconds)]
    low, high = max(min(seconds), 1e-6), max(seconds)
    ends = [low / 1.1, high * 1.1]
    guide: Figure = {"type": "scatter", "mode": "lines", "name": "as predicted", "x": ends, "y": ends}
    guide |= {"line": {"color": "#8c8c8c", "width": 1, "dash": "dot"}, "hoverinfo": "skip"}
    dots = [_dots(reading, name, spans, place) for place, (name, spans) in enumerate(sorted(by_technique.items()))]
    return {"data": [guide, *dots], "layout": _predictions_layout(low, high)}


def time_unit(seconds: float) -> tuple[float, str]:
    """What to divide seconds by for an axis this long, and what to call it.

    >>> time_unit(90.0), time_unit(7200.0)
    ((1.0, 'seconds'), (60.0, 'minutes'))
    """
    if seconds < 240:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 4 * 3600 else (3600.0, "hours")


def label(text: str, *, longest: int = 48) -> str:
    """Text for use inside a chart: escaped, and cut in the middle where it is long.

    >>> label("<b>x"), label("abcdefghij", longest=5)
    ('&lt;b&gt;x', 'ab…ij')
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}…{text[-half:]}"
    return html.escape(text, quote=False)


def _shown_devices(reading: ReportData, bars: Mapping[str, list[Bar]]) -> tuple[list[str], list[str]]:
    used = {device for group in bars.values() for bar in group for device in bar.devices}
    if not used:
        return [], []
    every = [*reading.devices, *sorted(used - set(reading.devices))]
    if len(every) <= MOST_DEVICES:
        return every, []
    chosen = [device for device in every if device in used][:MOST_DEVICES]
    return chosen, [f"Of {len(every):,} devices the first {len(chosen)} that were used are drawn."]


def _gantt_traces(reading: ReportData, kind: str, pieces: list[tuple[Bar, float]], divisor: float) -> list[Figure]:
    """One trace for each colour and outcome: plotly.js cannot hatch bars of several colours in one."""
    alike: dict[tuple[int, str], list[tuple[Bar, float]]] = {}
    for bar, lane in pieces:
        place = reading.places.get(bar.tasks[0], 0) % len(PALETTE)
        alike.setdefault((place, bar.outcome), []).append((bar, lane))
    return [
        _gantt_trace(reading, kind, group, divisor)
        | (_draw_outlined(place) if kind != "measured" else _draw_filled(place, outcome))
        for (place, outcome), group in alike.items()
    ]


def _gantt_trace(reading: ReportData, kind: str, pieces: list[tuple[Bar, float]], divisor: float) -> Figure:
    measured = kind == "measured"
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "meta": kind,
        "base": [_round((bar.start_seconds - reading.origin_seconds) / divisor) for bar, _ in pieces],
        "x": [_round(bar.seconds / divisor) for bar, _ in pieces],
        "y": [lane + (0.14 if measured else -0.27) for _, lane in pieces],
        "width": 0.46 if measured else 0.28,
        "text": [label(_gang(reading, bar), longest=28) for bar, _ in pieces],
        "hovertext": [_bar_text(reading, bar) for bar, _ in pieces],
        "hoverinfo": "text",
        "textposition": "inside" if measured else "none",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def _draw_filled(place: int, outcome: str) -> Figure:
    fill, text = PALETTE[place]
    marker: Figure = {"color": fill, "line": {"width": 0}}
    if outcome in _HATCHES:  # faint, so that names stay readable
        hatch = {"shape": _HATCHES[outcome], "size": 7, "solidity": 0.2, "fillmode": "overlay"}
        marker["pattern"] = hatch | {"fgcolor": text, "fgopacity": 0.4}
    faint = {"opacity": 0.45} if outcome == "discarded" else {}
    return {"marker": marker, "insidetextfont": {"color": text, "size": 12}} | faint


def _draw_outlined(place: int) -> Figure:
    fill = PALETTE[place][0]
    return {"marker": {"color": f"{fill}26", "line": {"color": fill, "width": 1.5}}}


def _gantt_layout(devices: list[str], axis_title: str) -> Figure:
    vertical = {
        "tickvals": list(range(len(devices))),
        "ticktext": [label(device, longest=24) for device in devices],
        "range": [len(devices) - 0.45, -0.55],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
    return {
        "barmode": "overlay",
        "showlegend": False,
        "height": 80 + 54 * max(len(devices), 2),
        "xaxis": {"title": {"text": axis_title}, "rangemode": "tozero", "zeroline": False},
        "yaxis": vertical,
        "uniformtext": {"mode": "hide", "minsize": 11},
        "hovermode": "closest",
    }


def _gang(reading: ReportData, bar: Bar) -> str:
    first = reading.name(bar.tasks[0])
    return first if len(bar.tasks) == 1 else f"{first} + {len(bar.tasks) - 1}"


def _bar_text(reading: ReportData, bar: Bar) -> str:
    names = [
        f"<b>{label(reading.name(task))}</b>: {steps:,} steps" for task, steps in zip(bar.tasks, bar.steps, strict=True)
    ]
    names[8:] = [f"and {len(names) - 8} more"] if len(names) > 8 else []
    where = label(", ".join(bar.devices))
    outcome = "before it began anew" if bar.outcome == "discarded" else bar.outcome
    lines = [*names, f"{outcome}, {label(bar.technique or 'technique not known')} on {where}"]
    lines.append(f"predicted {show_seconds(bar.predicted_seconds)}")
    if bar.outcome != "planned":
        lines.append(f"measured {show_seconds(bar.seconds)}" + (" so far" if bar.outcome == "running" else ""))
    return "<br>".join(lines)


def _curve_data(reading: ReportData, task: TaskId, curve: Curve) -> dict[str, Any]:
    place = reading.places.get(task, 0)
    spans = reading.progress[task].spans if task in reading.progress else []
    return {
        "color": PALETTE[place % len(PALETTE)][0],
        "dash": _DASHES[place // len(PALETTE) % len(_DASHES)],
        "values": [value if math.isfinite(value) else None for value in curve.values],
        "steps": curve.steps,
        "trained": [_round(trained_seconds(spans, until_seconds=at)) for at in curve.at_seconds],
        "wall": [_round(at - reading.origin_seconds) for at in curve.at_seconds],
    }


def _dots(reading: ReportData, technique: str, spans: Iterable[Any], place: int) -> Figure:
    spans = list(spans)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(technique),
        "x": [_round(span.predicted_seconds) for span in spans],
        "y": [_round(span.measured_seconds) for span in spans],
        "hovertext": [
            f"<b>{label(reading.name(span.task))}</b><br>predicted {show_seconds(span.predicted_seconds)}"
            f"<br>measured {show_seconds(span.measured_seconds)}<br>ratio {span.ratio:.2f}"
            for span in spans
        ],
        "hoverinfo": "text",
        "marker": {
            "color": PALETTE[place % len(PALETTE)][0],
            "symbol": _SYMBOLS[place % len(_SYMBOLS)],
            "size": 9,
            "opacity": 0.8,
        },
    }


def _predictions_layout(low: float, high: float) -> Figure:
    # Within one power of ten a logarithmic axis has hardly a labelled tick.
    if high / low > 10:
        axis: Figure = {"type": "log", "dtick": 1}
    else:
        axis = {"type": "linear", "rangemode": "tozero"}
    return {
        "height": 380,
        "xaxis": axis | {"title": {"text": "predicted seconds"}},
        "yaxis": axis | {"title": {"text": "measured seconds"}},
        "hovermode": "closest",
        "showlegend": True,
    }


def _round(seconds: float) -> float:
    return float(f"{seconds:.6g}")
