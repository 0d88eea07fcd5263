"""Bytes and seconds as people write and read them."""

import math
import re
from collections.abc import Sequence

_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(text: str | int) -> int:
    """Bytes from text with a unit.

    >>> parse_bytes("8 GiB")
    8589934592
    """
    if isinstance(text, int):
        return text
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().lower()
    try:
        return int(float(digits) * _BYTES[unit])
    except (ValueError, KeyError):
        raise ValueError(f"bytes must be a number with a unit such as '8 GiB' or '500 MB', got {text!r}.") from None


def show_bytes(count: float) -> str:
    """Bytes for people, in powers of 1024.

    >>> show_bytes(9 << 30)
    '9.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str | float) -> float:
    """Seconds from text with units.

    >>> parse_seconds("2h"), parse_seconds("1 h 30 min"), parse_seconds("90")
    (7200.0, 5400.0, 90.0)
    """
    if isinstance(text, int | float):
        return float(text)
    parts = re.findall(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts)
    try:
        if not parts or whole != re.sub(r"\s", "", text.lower()):
            raise ValueError
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    except (ValueError, KeyError):
        raise ValueError(
            f"a time must be a number with units such as '2h', '1h30min' or '90s', got {text!r}."
        ) from None


def show_seconds(seconds: float) -> str:
    """Seconds for people.

    >>> show_seconds(12e-6), show_seconds(0.0042), show_seconds(75), show_seconds(7300)
    ('12 µs', '4.2 ms', '1 min 15 s', '2 h 1 min')
    """
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.2g} µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def show_number(number: float) -> str:
    """A measured number for people, with as many digits as mean something.

    >>> show_number(0.123456), show_number(12.345), show_number(666.66), show_number(101_234.6)
    ('0.123', '12.3', '667', '101,235')
    """
    if not -math.inf < number < math.inf:
        return "any number of" if number > 0 else str(number)
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def show_rate(per_second: float) -> str:
    """Items per second for people.

    >>> show_rate(101_234.6), show_rate(0.5)
    ('101,235 a second', '0.5 a second')
    """
    return f"{show_number(per_second)} a second"


def show_some(names: Sequence[str], *, most: int = 3) -> str:
    """The first few of these names, and how many more there are.

    >>> show_some(["a", "b"]), show_some(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")
