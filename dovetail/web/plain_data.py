"""Values as JSON has them: numbers that are not finite have names, and no number has more digits than anybody sees."""

import json
import math
from collections.abc import Mapping
from typing import Any

_DIGITS = 7


def plain_number(value: float | None) -> float | str | None:
    """A number for a page; one that is not finite by its name.

    >>> plain_number(0.123456789), plain_number(math.nan), plain_number(-math.inf)
    (0.1234568, 'NaN', '-Infinity')
    """
    if value is None or isinstance(value, int):
        return value
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain_seconds(value: float | None) -> float | None:
    """A moment to the millisecond; none where there never is one.

    >>> plain_seconds(1790000000.12345), plain_seconds(math.inf)
    (1790000000.123, None)
    """
    return None if value is None or not math.isfinite(value) else round(value, 3)


def plain_value(value: Any) -> Any:
    """A parameter for a page: a number, a word, or what else there is as one line of JSON.

    >>> plain_value([1, 2]), plain_value({"__float__": "NaN"}), plain_value(True)
    ('[1, 2]', 'NaN', True)
    """
    if isinstance(value, Mapping) and set(value) == {"__float__"}:
        return str(value["__float__"])
    if isinstance(value, float):
        return value if math.isfinite(value) else plain_number(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return json.dumps(value, default=str)


def dump(data: Any) -> str:
    """JSON as browsers read it, as short as can be.

    >>> dump({"a": [1, None]})
    '{"a":[1,null]}'
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":"))
