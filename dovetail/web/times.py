"""Moments for people."""

import datetime

# The simulated engine's clock starts at zero; no store is older than this.
_SIMULATED_BELOW = 1e8


def show_moment(at_seconds: float, *, zone: datetime.tzinfo | None = None) -> str:
    """A moment in this machine's time zone, or in `zone`; seconds of a simulated clock as what they are.

    >>> show_moment(1767225600.0, zone=datetime.UTC), show_moment(90.0)
    ('2026-01-01 00:00 UTC', 't = 90 s')
    """
    if at_seconds < _SIMULATED_BELOW:
        return f"t = {at_seconds:g} s"
    moment = datetime.datetime.fromtimestamp(at_seconds, tz=datetime.UTC).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M %Z")
