"""A schedule as bars in the terminal: a row for each device, a letter for each placement."""

import string
from collections.abc import Mapping

from rich.text import Text

from dovetail.vocabulary import Placement, Schedule, TaskId
from dovetail.vocabulary.units import show_seconds

# Nobody reads more rows; a larger cluster shows its first devices of each kind.
ROWS = 32
_MARKS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")


def gantt(schedule: Schedule, *, names: Mapping[TaskId, str], width: int) -> list[Text]:
    """The bars, a line with the time, and which letter is whose.

    >>> from dovetail.vocabulary import Option
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> a, b = (Placement(tasks=(name,), steps=(5,), option=option, devices=("n0:0",), start_seconds=start,
    ...                   duration_seconds=5.0) for name, start in (("a", 0.0), ("b", 5.0)))
    >>> print(*gantt(Schedule(placements=(a, b)), names={}, width=30), sep="\\n")
    n0:0 │AAAAAAAAAAAABBBBBBBBBBBB
          0 s               10.0 s
    A a, B b
    """
    placements = sorted(schedule.placements, key=lambda p: (p.start_seconds, p.devices))
    if not placements:
        return []
    devices = list(dict.fromkeys(device for p in placements for device in p.devices))
    shown = sorted(devices, key=_order)[:ROWS]
    label = max(map(len, shown))
    columns = max(10, width - label - 2)
    scale = columns / schedule.makespan_seconds
    marked = list(enumerate(placements))
    lines = [_row(device, label, columns, scale, marked) for device in shown]
    if len(devices) > len(shown):
        lines.append(Text(f"and {len(devices) - len(shown)} more devices", style="dim"))
    last = show_seconds(schedule.makespan_seconds)
    lines.append(Text(" " * (label + 2) + "0 s" + last.rjust(columns - 3), style="dim"))
    if len(placements) <= len(_MARKS):
        key = (f"{_MARKS[n]} {', '.join(names.get(t, t) for t in p.tasks)}" for n, p in marked)
        lines.append(Text(", ".join(key), style="dim"))
    return lines


def _row(device: str, label: int, columns: int, scale: float, marked: list[tuple[int, Placement]]) -> Text:
    cells = [(" ", "")] * columns
    for number, placement in marked:
        if device in placement.devices:
            first, last = round(placement.start_seconds * scale), round(placement.end_seconds * scale)
            # What is too short for a column still shows, where there is room.
            for column in range(min(first, columns - 1), max(last, min(first, columns - 1) + 1)):
                cells[column] = (_MARKS[number % len(_MARKS)], _COLOURS[number % len(_COLOURS)])
    row = Text(f"{device:<{label}} │")
    for mark, colour in cells:
        row.append(mark, style=colour)
    row.rstrip()
    return row


def _order(device: str) -> tuple[object, ...]:
    node, _, index = device.rpartition(":")
    return (len(node), node, int(index) if index.isdigit() else 0, device)
