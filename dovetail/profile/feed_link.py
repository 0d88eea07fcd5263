"""What the link to other nodes' idle cores carries: a few messages there and back. Plans nothing."""

import dataclasses

from dovetail.feeds.remote_cores import RemoteCores
from dovetail.vocabulary import RemoteProfile

# Large enough that the link's rate shows beside what a message takes, and small enough to pass in a moment.
_BYTES = 4 << 20
_TIMES = 4
# The node's host, which passes messages on, takes about as long for it as the process that reads.
_HANDS = 2.0


def measure_link(remote: RemoteCores, *, cores: int) -> RemoteProfile:
    """The cores that could be borrowed, with what a message and its answer take and how many bytes pass a second. Takes
    a fraction of a second, once a way is found. Raises `NoIdleCore` where nobody answers."""
    remote.round_trip(_BYTES)  # connections are made, and memory is found
    latency, busy = min(remote.round_trip(0, times=_TIMES))
    seconds, large_busy = min(remote.round_trip(_BYTES, times=_TIMES))
    found = RemoteProfile(
        cores=cores,
        latency_seconds=latency,
        bytes_per_second=_BYTES / max(seconds - latency, 1e-6),
        cpu_seconds=_HANDS * busy,
    )
    return dataclasses.replace(found, cpu_seconds_per_byte=_HANDS * max(0.0, large_busy - busy) / _BYTES)
