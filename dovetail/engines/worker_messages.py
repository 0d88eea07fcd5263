"""What workers say, read with care: users' programs run in the same process and can reach its socket, so anything may
come. What is no message is told by `ValueError` (or, from deep inside, by `RecursionError`): that worker's loss, and
nobody else's."""

import json
import math
import re
from collections.abc import Collection
from typing import Any

from dovetail.vocabulary import Event, read_event
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStopped,
    CheckpointDamaged,
    CheckpointSaved,
    FeedOpened,
    FeedResized,
    OptionRejected,
    PipelineTimed,
    RungReached,
    ShardEvaluated,
    StepsDone,
    TargetEvaluated,
    TaskFailed,
    TaskFingerprinted,
    TaskFinished,
    TrialMeasured,
    Warned,
)

# An error's text may have tens of megabytes.
LINE_BYTES = 256 << 20
# What SQLite holds, and what floats are made of, has no more.
_MOST = 1 << 63
_FIELDS: dict[str, Any] = {
    "doing": str,
    "idle": int | float,
    "order": str,
    "vacated": str,
    "released": str,
    "seconds": dict,
    "busy": int | float,
    "held": int,
    "event": dict,
}
# Halves of characters, written out or as bytes: these may be lone ones.
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_REPORTED = (
    AttemptLost,
    AttemptStopped,
    CheckpointDamaged,
    CheckpointSaved,
    FeedOpened,
    FeedResized,
    OptionRejected,
    PipelineTimed,
    RungReached,
    ShardEvaluated,
    StepsDone,
    TargetEvaluated,
    TaskFailed,
    TaskFingerprinted,
    TaskFinished,
    TrialMeasured,
    Warned,
)
"""The kinds of event that are a worker's to report."""


class MessageReader:
    """Puts the pieces that come from a socket together to messages.

    >>> reader = MessageReader()
    >>> reader.take(b'{"idle": 0}\\n{"do'), reader.take(b'ing": "step 1"}\\n')
    ([{'idle': 0}], [{'doing': 'step 1'}])
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete with this piece."""
        first, *lines = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > LINE_BYTES:
            raise ValueError(f"a message must have at most {LINE_BYTES} bytes")
        if not lines:
            return []
        lines.insert(0, b"".join(self._parts))
        self._parts = [lines.pop()]
        self._size = len(self._parts[0])
        return [read_message(line) for line in lines]


def read_message(line: bytes) -> dict[str, Any]:
    """The message in a line; halves of characters, which nobody could store or print, are replaced.

    >>> read_message(b'{"idle": 0.5}')
    {'idle': 0.5}
    """
    message = json.loads(line, parse_int=_read_whole_number)
    if not isinstance(message, dict):
        raise ValueError(f"a message must be an object, got {str(message)[:80]}")
    for name, wanted in _FIELDS.items():
        if name in message and not isinstance(message[name], wanted):
            raise ValueError(f"a message's {name!r} must not be {str(message[name])[:80]!r}")
    for word, seconds in message.get("seconds", {}).items():
        if not isinstance(seconds, int | float):
            raise ValueError(f"a message's seconds of {word[:80]!r} must be a number")
    found: dict[str, Any] = _mend(message) if _HALVES.search(line) else message
    return found


def read_reported(given: dict[str, Any], *, tasks: Collection[str]) -> Event:
    """The event that a worker reports of one of these tasks."""
    try:
        event = read_event(**given)
        is_own = isinstance(event, _REPORTED) and event.task in tasks and isinstance(event.attempt, int)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(str(error)) from None
    if not is_own:
        raise ValueError(f"an event must be a worker's own, got {event.kind!r} of {str(event.task)[:80]!r}")
    if not math.isfinite(event.at_seconds):
        raise ValueError(f"an event must have a time, got {event.at_seconds}")
    if isinstance(event, StepsDone):
        _check_progress(event)
    if isinstance(event, ShardEvaluated):
        _check_sums(event)
    if isinstance(event, TargetEvaluated | AttemptStopped) and not all(
        0 <= s < math.inf for s in event.seconds.values()
    ):
        raise ValueError(f"seconds must be numbers of at least 0, got {str(dict(event.seconds))[:80]}")
    return event


def _check_progress(event: StepsDone) -> None:
    if not 0 <= event.steps_per_second < math.inf:
        raise ValueError(f"steps per second must be a number, got {event.steps_per_second}")
    for point in event.points:
        name, step, value = point if isinstance(point, tuple) and len(point) == 3 else (None, None, None)
        if not (isinstance(name, str) and isinstance(step, int) and isinstance(value, int | float)):
            raise ValueError(f"a point must be a name, a step and a value, got {str(point)[:80]}")


def _check_sums(event: ShardEvaluated) -> None:
    for name, found in event.sums.items():
        pair = found if isinstance(found, list | tuple) else ()
        if len(pair) != 2 or not all(isinstance(each, int | float) for each in pair):
            raise ValueError(f"a metric's sum must be a sum and a count, got {name[:80]!r}: {str(found)[:80]}")


def _read_whole_number(text: str) -> int:
    number = int(text)
    if not -_MOST <= number < _MOST:
        raise ValueError(f"a number must have at most 64 bits, got one of {number.bit_length()}")
    return number


def _mend(value: Any) -> Any:
    """JSON data with every half of a character replaced."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_mend(each) for each in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(each) for key, each in value.items()}
    return value
