"""The process of one tracker beside a run: `python -m dovetail.trackers.tracking_process`.

What to do comes as a line on its standard input, for an address may hold a password; the end of that input is the word
to end. So it ends with whoever started it, however that ends, once it has sent what there is, or after a while.
"""

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from dovetail.trackers.addresses import TrackerAddress
from dovetail.trackers.following import follow

# What runs beside training on the same cores takes what training leaves.
NICENESS = 10
# Nobody waits for longer than this for what is left: it is sent by the next one.
GRACE_SECONDS = 60.0


def main() -> None:
    """Track as the first line of the standard input says, until that ends."""
    given = json.loads(sys.stdin.readline())
    if given["polite"]:
        _lower_priority()
    ending = threading.Event()
    threading.Thread(target=_end_with_input, args=(ending,), daemon=True).start()
    follow(
        TrackerAddress(kind=given["kind"], place=given["place"], given=given["given"]),
        Path(given["home"]),
        ending=ending,
        workload=given["workload"],
        models=given["models"],
    )


def _lower_priority() -> None:
    """Let training go first where all cores are busy. Where Linux shares cores between sessions (autogroup), a
    process's niceness counts within its own session only: this one has one to itself, so that it can be given that."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def _end_with_input(ending: threading.Event) -> None:
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    ending.set()
    time.sleep(GRACE_SECONDS)
    os._exit(1)  # a call to a tracker that never answers cannot be ended otherwise


if __name__ == "__main__":
    main()
