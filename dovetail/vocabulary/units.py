"""Bytes and seconds as people write and read them."""

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


def show_seconds(seconds: float) -> str:
    """Seconds for people.

    >>> show_seconds(0.0042), show_seconds(75), show_seconds(7300)
    ('4.2 ms', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
