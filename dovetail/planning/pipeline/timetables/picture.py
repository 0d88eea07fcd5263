"""Who computes which microbatch when, for a terminal and for a page. Draws what was simulated, or measured."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from dovetail.planning.pipeline.timetables.timing import Simulated, Timed

_LETTERS = {"forward": "F", "backward": "B", "inputs": "I", "weights": "W", "update": "U"}
# Light enough for black figures; told apart by lightness as well as by hue.
_COLOURS = {"forward": "#a6cee3", "backward": "#b2df8a", "inputs": "#b2df8a", "weights": "#fdbf6f", "update": "#cab2d6"}
_ROW, _BAR, _LEFT, _WIDTH = 26, 20, 64, 960


def text(simulated: Simulated, *, columns: int = 96, seconds: float = 0.0) -> str:
    """A row for each rank: forwards as F, backwards as B, or I and W where they are split, with the microbatch, updates
    as U; dots are idle. What is too narrow for its figures shows its letter alone. `seconds` are what all columns
    stand for, so that pictures can be compared; left out, as long as it takes.

    >>> from dovetail.planning.pipeline.timetables.alternating import one_forward_one_backward
    >>> from dovetail.planning.pipeline.timetables.timing import Durations, simulate
    >>> print(text(simulate(one_forward_one_backward([1, 1], microbatches=2), Durations.equal(2)), columns=27))
    rank 0  F0-F1-......B0----...B1----
    rank 1  ...F0-B0----F1-B1----......
    """
    whole = seconds or simulated.seconds
    scale = columns / whole if whole else 0.0
    return "\n".join(
        f"rank {number:<2} {''.join(_cells(rank, scale, columns))}" for number, rank in enumerate(simulated.ranks)
    )


def svg(simulated: Simulated, *, seconds: float = 0.0) -> str:
    """The same as a picture that stands alone.

    >>> from dovetail.planning.pipeline.timetables.alternating import gpipe
    >>> from dovetail.planning.pipeline.timetables.timing import Durations, simulate
    >>> svg(simulate(gpipe([1, 1], microbatches=2), Durations.equal(2))).startswith("<svg")
    True
    """
    whole = seconds or simulated.seconds
    scale = (_WIDTH - _LEFT) / whole if whole else 0.0
    height = _ROW * len(simulated.ranks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(simulated.name)}</title>'
    ]
    for number, rank in enumerate(simulated.ranks):
        top = number * _ROW
        parts.append(f'<text class="rank" x="4" y="{top + 15}">rank {number}</text>')
        parts += [_box(timed, top, scale) for timed in rank if timed.end > timed.start]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cells(rank: tuple[Timed, ...], scale: float, columns: int) -> Iterator[str]:
    place = 0
    for timed in rank:
        start, end = max(place, round(timed.start * scale)), min(columns, round(timed.end * scale))
        if end <= start:
            continue
        yield "." * (start - place)
        letter = _LETTERS[timed.action.operation]
        label = letter if letter == "U" else f"{letter}{timed.action.microbatch}"
        yield label.ljust(end - start, "-") if len(label) <= end - start else letter.ljust(end - start, "-")
        place = end
    yield "." * (columns - place)


def _box(timed: Timed, top: int, scale: float) -> str:
    operation = timed.action.operation
    number = "" if operation == "update" else timed.action.microbatch
    left, width = _LEFT + timed.start * scale, (timed.end - timed.start) * scale
    label = f'<text x="{left + width / 2:.1f}" y="{top + 15}" text-anchor="middle">{number}</text>'
    return (
        f'<rect x="{left:.1f}" y="{top + 2}" width="{width:.1f}" height="{_BAR}" fill="{_COLOURS[operation]}" '
        f'stroke="#555" stroke-width="0.5"><title>{escape(str(timed.action))}</title></rect>'
        + (label if width >= 7 * len(str(number)) else "")
    )
