"""How much memory this machine gives a process."""

import contextlib
from pathlib import Path

# A container's limit is below the machine's.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_memory_bytes() -> int:
    """All memory of the machine, or of the container that this is.

    >>> host_memory_bytes() > 1 << 28
    True
    """
    import psutil

    total = psutil.virtual_memory().total
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return int(total)
