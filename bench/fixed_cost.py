"""What a run costs beyond its training in one Python session: the first one, one of another workload after it, and one
that is finished already, beside the same steps in a plain loop of this process.

`python bench/fixed_cost.py [--rounds 3] [--quick] [--check]`. Two tasks of thirty steps that take milliseconds, so that
all else shows; medians over sessions, each with a store of its own.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from one_after_another import train
from reporting import Bar, finish

import dovetail as dt

PROGRAM = "dovetail.testing.programs:dropout"
STEPS = 30
# Seconds that a user may wait for a tiny workload once workers are warm, and for one that is finished.
AGAIN, FINISHED = 2.0, 1.0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="one session; writes nothing")
    chosen = arguments.parse_args()
    found = [one_session() for _ in range(1 if chosen.quick else chosen.rounds)]
    seconds = {what: statistics.median(each[what] for each in found) for what in found[0]}
    bars = [
        Bar("another workload of a session, seconds", seconds["another workload"], most=AGAIN),
        Bar("a finished workload again, seconds", seconds["a finished workload"], most=FINISHED),
    ]
    rows = [{"run": what, "seconds": value} for what, value in seconds.items()]
    return finish("fixed_cost", rows, bars, check=chosen.check, quick=chosen.quick)


def one_session() -> dict[str, float]:
    """The seconds of each run of a session."""
    first, second = (dt.grid(PROGRAM, seed=seeds, steps=STEPS, name="tiny") for seeds in ([0, 1], [2, 3]))
    with tempfile.TemporaryDirectory() as folder, dt.Session(store=Path(folder) / "store") as session:
        return {
            "the first": timed(lambda: session.run(first)),
            "another workload": timed(lambda: session.run(second)),
            "a finished workload": timed(lambda: session.run(second)),
            "a plain loop": timed(lambda: [train(task) for task in second.tasks]),
        }


def timed(what: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
