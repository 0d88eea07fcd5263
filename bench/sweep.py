"""End to end on this machine: a sweep by `dovetail run`, trials and planning counted in, beside the same tasks one
after another on all cores in one bare process, and beside two at a time in arrival order.

`python bench/sweep.py [mlps|mix|readers ...] [--rounds N] [--quick] [--check]`. All are whole commands, imports and
all, interleaved; medians are compared. The machine's ceiling is what two processes of one thread at once do against one
after another with all threads: nothing but fusing can be faster than that.
"""

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from commands import HERE, run_words, script_words, started, timed
from reporting import Bar, finish

from dovetail.control import open_result

SWEEPS = {"mlps": 1.8, "mix": 1.15, "readers": 1.5}
"""Each sweep, with how many times faster than one after another it must be."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("sweeps", nargs="*", default=list(SWEEPS), metavar="SWEEP", help=", ".join(SWEEPS))
    arguments.add_argument("--rounds", type=int, default=3, help="how often each is run")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a few steps of each; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.sweeps) - set(SWEEPS):
        arguments.error(f"SWEEP must be one of {', '.join(SWEEPS)}, got {', '.join(sorted(unknown))}")
    rows, bars = [], []
    for name in chosen.sweeps:
        row = measure(name, rounds=1 if chosen.quick else chosen.rounds, quick=chosen.quick)
        rows.append(row)
        bars += bars_of(name, row)
    sys.exit(finish("sweep", rows, bars, check=chosen.check, quick=chosen.quick))


def measure(name: str, *, rounds: int, quick: bool) -> dict[str, Any]:
    """Every way `rounds` times, in turn; medians."""
    steps = "60" if quick else "4000"
    path = str(HERE / "sweeps" / f"{name}.py")
    found: dict[str, list[float]] = {"dovetail": [], "one after another": [], "two at a time": []}
    trained: dict[str, list[float]] = {"one": [], "two": []}
    predictions = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "store"
            found["dovetail"].append(timed(run_words(path, home), DOVETAIL_BENCH_STEPS=steps)[0])
            result = open_result(home)
            if result.planned_seconds and result.makespan_seconds:
                predictions.append(result.planned_seconds / result.makespan_seconds)
            used = sorted({event.option.technique for event in started(home)})
            shutil.rmtree(home, ignore_errors=True)
        for way, script in (("one after another", "one_after_another.py"), ("two at a time", "two_at_a_time.py")):
            seconds, output = timed(script_words(script, path), DOVETAIL_BENCH_STEPS=steps)
            found[way].append(seconds)
            trained[way.partition(" ")[0]].append(json.loads(output)["seconds"])
        print(f"{name}, round {number + 1} of {rounds}: " + ", ".join(f"{w} {s[-1]:.1f} s" for w, s in found.items()))
    middle = {way: statistics.median(seconds) for way, seconds in found.items()}
    return {
        "sweep": name,
        **{f"{way}, s": seconds for way, seconds in middle.items()},
        "over one after another": middle["one after another"] / middle["dovetail"],
        "over two at a time": middle["two at a time"] / middle["dovetail"],
        "ceiling": statistics.median(trained["one"]) / statistics.median(trained["two"]),
        "predicted over measured": statistics.median(predictions) if predictions else math.nan,
        "techniques": ", ".join(used),
    }


def bars_of(name: str, row: dict[str, Any]) -> list[Bar]:
    """What must come out."""
    better = min(row["one after another, s"], row["two at a time, s"])
    return [
        Bar(f"{name}: over one after another", row["over one after another"], least=SWEEPS[name]),
        Bar(f"{name}: the better baseline over ours", better / row["dovetail, s"], least=0.95),
        Bar(f"{name}: predicted makespan off by", abs(row["predicted over measured"] - 1), most=0.2),
    ]


if __name__ == "__main__":
    main()
