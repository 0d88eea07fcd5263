"""Feeds in whole runs: how many cores read and how many compute, decided with everything else.

`python bench/feed_joint.py [mix] [light] [heavy] [large] [--quick] [--check]`. `mix`, on two cores: two networks that
wait for their pictures and two that do not, by `dovetail run`, beside the same tasks one after another with one core
for reading and one for computing. The others on one H200: a convolutional network for which 16 cores read fast enough
(`heavy`: how long do steps wait?), one for which they do not (`light`, beside a plain loop with the best `DataLoader`),
and a spilled model whose optimizer wants the same cores (`large`, beside giving nearly all cores to one of the two).
`--quick` runs a few steps of `mix` and writes nothing.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import HERE, environment, run_words, timed
from gang_rates import gang_rates
from reporting import Bar, finish

from dovetail.control import open_result
from dovetail.store import Store
from dovetail.vocabulary import Event
from dovetail.vocabulary.events import FeedOpened, FeedResized, TrialMeasured

ROWS = ("mix", "light", "heavy", "large")
SWEEP = str(HERE / "sweeps" / "pictures.py")
WORKERS = (8, 12, 16)
LOADER_SECONDS = 6
FAVOURED = (2, 13)
"""Cores of the feed where one of the two is favoured: its processes, or the host's updates."""
SPILLED_BYTES = 2 << 30
SPILLED_STEPS = 24
FASTER, WAITING, LOADER_TIMES, LOST = 1.2, 0.05, 1.2, 0.10


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="*", default=["mix"], metavar="ROW", help=", ".join(ROWS))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a few steps; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.rows) - set(ROWS):
        arguments.error(f"ROW must be one of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}")
    measures = {"mix": mix, "light": light, "heavy": heavy, "large": large}
    rows, bars = [], []
    for name in chosen.rows:
        found = measures[name](quick=chosen.quick)
        rows += found[0]
        bars += found[1]
    sys.exit(finish("feed_joint", rows, bars, check=chosen.check, quick=chosen.quick, part_by="row"))


def by_hand(row: str, *words: str, **variables: str) -> dict[str, Any]:
    """What one of the ways by hand prints, and the seconds of its whole process; NaN where it fails."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(HERE / "picture_loops.py"), *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=environment(DOVETAIL_BENCH_PICTURES=row, **variables),
    )
    found = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {"step_seconds": math.nan}
    found = {"seconds": time.perf_counter() - began, **found}
    print(row, *words, *variables.values(), found, file=sys.stderr)  # what a run that is cut off leaves
    return found


def ours(row: str, *more: str, **variables: str) -> dict[str, Any]:
    """A whole `dovetail run`: its seconds, and of its longest placement the seconds a step, the share in which it
    waited for data, and the cores that its feed had; what its trials measured of a step that need not wait, and the
    workers of the last feed that was opened, with what became of them."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "store"
        seconds, _ = timed(run_words(SWEEP, home, *more), DOVETAIL_BENCH_PICTURES=row, **variables)
        tasks = open_result(home).tasks
        rates = gang_rates(home)
        with Store(home) as store:
            events = [event for _, event in store.events()]
    best = max(rates, key=lambda rate: rate.steps, default=None)
    found = {
        "row": row,
        "way": "dovetail run",
        "seconds": seconds,
        "step_seconds": best and best.measured_seconds,
        "predicted": best and best.predicted_seconds,
        "waiting_share": max(task.data_share for task in tasks),
        "feed_cores": best and best.option.feed_cores,
        "technique": best and best.option.technique,
        "computing": ", ".join(f"{each:.4g}" for each in computing_seconds(events)),
        "workers": workers_of(events),
    }
    print(found, file=sys.stderr)
    return found


def computing_seconds(events: Sequence[Event]) -> list[float]:
    """What a step took in each trial with a feed, where it did not wait."""
    profiles = [event.profile for event in events if isinstance(event, TrialMeasured)]
    return [profile.computing_seconds for profile in profiles if profile.feed]


def workers_of(events: Sequence[Event]) -> str:
    """Those of each stage of the last feed that was opened, its wall, and how they were resized."""
    words = ""
    for event in events:
        if isinstance(event, FeedOpened):
            words = ", ".join(f"{stage}: {workers}" for stage, workers in event.workers.items())
            words += f" (wall: {event.wall})"
        elif isinstance(event, FeedResized):
            words += f"; {event.stage}: {event.after}"
    return words


def mix(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Two cores for four tasks."""
    steps = {"DOVETAIL_BENCH_STEPS": "3"} if quick else {}
    plain = {"row": "mix", "way": "one core reads, one computes", **by_hand("mix", "split", **steps)}
    found = ours("mix", **steps)
    return [plain, found], [Bar("mix, cores split evenly over ours", plain["seconds"] / found["seconds"], least=FASTER)]


def light(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Reading is the wall."""
    rows = [
        {
            "row": "light",
            "way": f"DataLoader, {workers} workers",
            **by_hand("light", "loader", str(LOADER_SECONDS), DOVETAIL_BENCH_LOADER=str(workers)),
        }
        for workers in WORKERS
    ]
    found = ours("light")
    best = min(row["step_seconds"] for row in rows)
    return [*rows, found], [
        Bar("light, best DataLoader's step over ours", best / found["step_seconds"], least=LOADER_TIMES)
    ]


def heavy(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The cores read fast enough."""
    found = ours("heavy")
    return [found], [Bar("heavy, share of steps spent waiting for data", found["waiting_share"], most=WAITING)]


def large(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The host's updates want the feed's cores."""
    steps = str(SPILLED_STEPS)
    rows = [
        {
            "row": "large",
            "way": f"by hand, {cores} cores read",
            "feed_cores": cores,
            **by_hand("large", "spill", str(cores), steps, str(SPILLED_BYTES)),
        }
        for cores in FAVOURED
    ]
    gibibytes = f"{SPILLED_BYTES >> 30} GiB"
    found = ours("large", "--techniques", "spill", "--device-memory", gibibytes)
    best = min(row["step_seconds"] for row in rows)
    return [*rows, found], [Bar("large, lost against the better of two", found["step_seconds"] / best - 1, most=LOST)]


if __name__ == "__main__":
    main()
