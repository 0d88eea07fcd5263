"""What notebooks show of plans and results: small tables and drawings as HTML, with every text of users escaped.

Colours of text and lines are the page's own, so that light and dark pages both show them.
"""

import colorsys
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.vocabulary.units import show_seconds
from dovetail.vocabulary.user_text import escape_controls, shorten

if TYPE_CHECKING:
    from dovetail.vocabulary.decisions import Placement, Schedule
    from dovetail.vocabulary.work import TaskId

# Nobody reads more rows; the others are counted.
MOST_ROWS, MOST_DEVICES, MOST_BARS = 40, 32, 2000
_MOST_CELL = 300
_CELL = "text-align:left;padding:1px 10px 1px 0"
# Sizes of the drawing.
_WIDTH, _ROW, _LABEL = 720, 18, 90
# Hues this far apart differ as much as they can, however many there are: the golden ratio of the circle.
_HUE = 0.618034


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape_text(text: object) -> Markup:
    """Text as HTML that shows it, and nothing else.

    >>> escape_text("<b>\\x1b[2J")
    '&lt;b&gt;\\\\x1b[2J'
    """
    return text if isinstance(text, Markup) else Markup(html.escape(escape_controls(str(text))))


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, most: int = MOST_ROWS) -> Markup:
    """A table; of many rows the first ones, and how many more there are.

    >>> html_table(["task"], [["a<b"]]).count("a&lt;b")
    1
    """
    rows = list(rows)
    head = "".join(f'<th style="{_CELL}">{escape_text(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:most])
    if len(rows) > most:
        body += f'<tr><td style="{_CELL}" colspan="{len(heads)}">and {len(rows) - most} more</td></tr>'
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def html_lines(lines: Iterable[object]) -> Markup:
    """Lines, one below the other."""
    return Markup("".join(f"<div>{escape_text(line)}</div>" for line in lines))


def html_details(title: str, content: Markup) -> Markup:
    """What is shown when one opens it."""
    return Markup(f"<details><summary>{escape_text(title)}</summary>{content}</details>") if content else Markup("")


def html_gantt(schedule: "Schedule", *, names: Mapping["TaskId", str]) -> Markup:
    """A schedule as bars, a row for each device; each bar says on being pointed at what it is.

    >>> from dovetail.vocabulary import Option, Placement, Schedule
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> placement = Placement(tasks=("a",), steps=(5,), option=option, devices=("n0:0",), start_seconds=0.0,
    ...                       duration_seconds=5.0)
    >>> drawn = html_gantt(Schedule(placements=(placement,)), names={"a": "<small>"})
    >>> drawn.count("<rect"), "&lt;small&gt;" in drawn
    (1, True)
    """
    placements = sorted(schedule.placements, key=lambda p: (p.start_seconds, p.devices))[:MOST_BARS]
    devices = sorted({device for each in placements for device in each.devices}, key=_order)[:MOST_DEVICES]
    if not devices or schedule.makespan_seconds <= 0:
        return Markup("")
    scale = (_WIDTH - _LABEL) / schedule.makespan_seconds
    rows = {device: number * _ROW for number, device in enumerate(devices)}
    labels = "".join(f'<text x="0" y="{y + 13}">{escape_text(device)}</text>' for device, y in rows.items())
    bars = "".join(
        _bar(each, number, y=rows[device], scale=scale, names=names)
        for number, each in enumerate(placements)
        for device in each.devices
        if device in rows
    )
    height = len(devices) * _ROW
    axis = f'<text x="{_LABEL}" y="{height + 14}">0 s</text>'
    axis += f'<text x="{_WIDTH}" y="{height + 14}" text-anchor="end">{show_seconds(schedule.makespan_seconds)}</text>'
    return Markup(
        f'<svg width="{_WIDTH}" height="{height + 20}" font-size="11" fill="currentColor" '
        f'font-family="sans-serif" role="img" aria-label="schedule">{labels}{bars}{axis}</svg>'
    )


def _bar(placement: "Placement", number: int, *, y: float, scale: float, names: Mapping["TaskId", str]) -> str:
    tasks = ", ".join(names.get(task, task) for task in placement.tasks)
    how = f"{tasks}: {placement.option.technique} on {', '.join(placement.devices)}, "
    when = f"{show_seconds(placement.start_seconds)} to {show_seconds(placement.end_seconds)}"
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(number * _HUE % 1.0, 0.6, 0.55))
    x, width = _LABEL + placement.start_seconds * scale, max(1.0, placement.duration_seconds * scale - 1)
    return (
        f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" rx="2" '
        f'fill="rgb({red},{green},{blue})"><title>{escape_text(how + when)}</title></rect>'
    )


def _cell(content: object) -> str:
    text = content if isinstance(content, Markup) else shorten(str(content), most=_MOST_CELL)
    return f'<td style="{_CELL}">{escape_text(text)}</td>'


def _order(device: str) -> tuple[object, ...]:
    node, _, index = device.rpartition(":")
    return (len(node), node, int(index) if index.isdigit() else 0, device)
