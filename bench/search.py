"""A search beside Optuna's own loop, and under kill -9.

`times`: TPE over 40 trials of recipes/charlm.py by `dovetail run`, beside `study.optimize(n_jobs=2)` over the plain
loop, which is given the very trials that ours asked for: as people write it, which is what counts, and with one thread
of torch each, by those who know that the two have to share the cores. `kills`: the search's process is killed at random
moments and run again; then every trial is in the study once, was told once, and every task is equal to the bit to that
of an undisturbed search of the same trials. `population` likewise: population based training, which has no trials to be
given, comes to the same by itself.
`python bench/search.py [NAME ...] [--rounds N] [--kills N] [--seed N] [--check] [--quick]`.
"""

import argparse
import collections
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from commands import HERE, environment, run_words, timed
from invariants import Findings, compare_checkpoints
from reporting import Bar, finish

from dovetail.control import open_result
from dovetail.control.searching.study_file import open_study, study_path
from dovetail.describe import Search, load_described

SEARCHES = HERE / "sweeps" / "searches.py"
FASTER = 1.3
# When a search is killed after it was started: while it imports, measures, asks, trains or ends.
LEAST_SECONDS, MOST_SECONDS = 1.0, 30.0
PARTS = {"times": "timed", "kills": "killed", "population": "population"}
"""The parts of this bench and the search that each is of."""
# In Optuna's journal: that a trial has a state, and that this is complete, pruned or failed.
STATE_SET, ENDED = 6, (1, 2, 3)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PARTS))
    arguments.add_argument("--rounds", type=int, default=3, help="how often each is timed; medians are compared")
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0, help="of the moments at which it is killed")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a few steps of each; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.names) - set(PARTS):
        arguments.error(f"NAME must be one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if chosen.quick:
        os.environ |= {"DOVETAIL_BENCH_STEPS": "10", "DOVETAIL_BENCH_COUNT": "4"}
        chosen.rounds, chosen.kills = 1, 2
    rows, bars = [], []
    for name in chosen.names or PARTS:
        if name == "times":
            row, more = compare_times(chosen.rounds)
        else:
            row, more = survive(PARTS[name], kills=chosen.kills, generator=random.Random(chosen.seed))
        rows.append(row)
        bars += more
        print(row, flush=True)
    return finish("search", rows, bars, check=chosen.check, quick=chosen.quick, part_by="part")


# Beside Optuna's own loop


def compare_times(rounds: int) -> tuple[dict[str, Any], list[Bar]]:
    """Medians of whole commands, by turns, since a machine is faster or slower for minutes."""
    place, seconds = f"{SEARCHES}:timed", collections.defaultdict[str, list[float]](list)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            home, asked = Path(folder) / "store", Path(folder) / "trials.json"
            seconds["dovetail"].append(timed(run_words(place, home))[0])
            trials = open_result(home, workload="timed").study().trials
            asked.write_text(json.dumps([trial.params for trial in trials]))
            for way, threads in (("optuna", []), ("optuna_one_thread", ["1"])):
                words = [sys.executable, str(HERE / "optuna_threads.py"), place, str(asked), *threads]
                took, line = timed(words)
                seconds[way].append(took)
                assert json.loads(line)["trials"] == len(trials)
        print({way: each[-1] for way, each in seconds.items()}, flush=True)
    middle = {way: statistics.median(each) for way, each in seconds.items()}
    faster = middle["optuna"] / middle["dovetail"]
    steps = os.environ.get("DOVETAIL_BENCH_STEPS", "200")
    row = {
        "part": "times",
        "trials": len(trials),
        "steps": steps,
        **{f"{way}_seconds": each for way, each in middle.items()},
    }
    row |= {"times_faster": faster, "over_one_thread": middle["optuna_one_thread"] / middle["dovetail"]}
    return row, [Bar("times, times faster than study.optimize(n_jobs=2)", faster, least=FASTER)]


# Kills


def survive(name: str, *, kills: int, generator: random.Random) -> tuple[dict[str, Any], list[Bar]]:
    """What a search comes to that was killed so many times, beside one that was not."""
    small = {"DOVETAIL_BENCH_STEPS": os.environ.get("DOVETAIL_BENCH_STEPS", "80")}
    small["DOVETAIL_BENCH_COUNT"] = os.environ.get("DOVETAIL_BENCH_COUNT", "16")
    os.environ |= small
    place, found = f"{SEARCHES}:{name}", Findings()
    part = next(key for key, value in PARTS.items() if value == name)
    landed = ended = 0
    with tempfile.TemporaryDirectory() as folder:
        while landed < kills:  # a search that has ended before it could be killed is followed by another
            stormy, calm = Path(folder) / f"stormy-{ended}", Path(folder) / f"calm-{ended}"
            while landed < kills and kill_once(place, stormy, generator):
                landed += 1
            ended += 1
            timed(run_words(place, stormy, "--exact"))
            trials = open_result(stormy, workload=name).study().trials
            search = load_described(place)
            assert isinstance(search, Search)
            if name != "population":
                enqueue(search, trials, calm)
                if len(trials) != search.count:
                    found.wrong.append(f"the study must have {search.count} trials, it has {len(trials)}")
            timed(run_words(place, calm, "--exact"))
            check_once(study_path(stormy, name), trials, found)
            compare(name, stormy, calm, found)
    print("\n".join(found.wrong), end="\n" if found.wrong else "")
    row = {"part": part, "kills": landed, "searches": ended, "trials": len(trials), "wrong": len(found.wrong)}
    bar = f"{part}, trials and tasks that are lost, told twice or not as undisturbed"
    return row, [Bar(bar, float(row["wrong"]), most=0.0)]


def kill_once(place: str, home: Path, generator: random.Random) -> bool:
    """Run the search until a random moment; whether it was still at work then."""
    process = subprocess.Popen(
        run_words(place, home, "--exact", "--save-seconds", "0.5"),
        env=environment(),
        cwd=HERE.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(timeout=math.exp(generator.uniform(math.log(LEAST_SECONDS), math.log(MOST_SECONDS))))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def enqueue(search: Search, trials: list[Any], home: Path) -> None:
    """Have the search at `home` ask for these very trials."""
    home.mkdir(mode=0o700)
    study = open_study(search, home=home, name=search.name)
    for trial in trials:
        study.enqueue_trial(trial.params)


def check_once(journal: Path, trials: list[Any], found: Findings) -> None:
    """Every trial of the study has ended, with a task of its own, and was told once; by the journal itself."""
    tasks = collections.Counter(trial.user_attrs.get("task") for trial in trials)
    for task, count in tasks.items():
        if count > 1 or not task:
            found.wrong.append(f"{task!r} must be the task of one trial, found {count}")
    told = collections.Counter(
        line["trial_id"]
        for line in map(json.loads, journal.read_text().splitlines())
        if line["op_code"] == STATE_SET and line["state"] in ENDED
    )
    for trial in trials:
        if not trial.state.is_finished() or told[trial._trial_id] != 1:
            state, times = trial.state.name, told[trial._trial_id]
            found.wrong.append(f"trial {trial.number} must be told once, was told {times} times and is {state}")


def compare(name: str, stormy: Path, calm: Path, found: Findings) -> None:
    """Both have the same tasks, of the same bits, and their studies the same values."""
    ours, theirs = (open_result(home, workload=name) for home in (stormy, calm))
    if sorted(task.name for task in ours.tasks) != sorted(task.name for task in theirs.tasks):
        found.wrong.append("both searches must have the same tasks")
        return
    values = [[(trial.number, trial.state, trial.value) for trial in each.study().trials] for each in (ours, theirs)]
    found.wrong += [f"{one} must be {other}" for one, other in zip(*values, strict=True) if one != other]
    for task in ours.tasks:
        folders = [home / "checkpoints" / task.task.identity for home in (stormy, calm)]
        compare_checkpoints(task.name, folders[0], folders[1], task.step, found)


if __name__ == "__main__":
    sys.exit(main())
