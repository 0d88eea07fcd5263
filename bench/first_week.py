"""Programs as people bring them in their first week (`sweeps/first_week`), each through `dovetail run`.

Each is run whole beside the same six tasks in a plain loop, and beside two plain processes; the random searches
beside joblib with two processes. Then each is stopped by Ctrl-C on the way and run again, and must end as without
that, to the bit; and thirty programs of which four crash must not keep the good ones waiting.
`python bench/first_week.py [NAME ...] [--rounds N] [--check] [--quick]`; what is named takes the place of its rows in
the results, so that a machine need not be left alone for as long as all of them take.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from commands import environment, run_words, script_words, timed
from invariants import Findings, compare_checkpoints
from reporting import Bar, finish

from dovetail.control import open_result
from dovetail.metrics.account import account
from dovetail.store import Store
from dovetail.vocabulary import StoreError
from dovetail.vocabulary.events import AttemptStarted, CheckpointSaved, DevicesReleased, StepsDone

SWEEPS = Path(__file__).parent / "sweeps" / "first_week"
SIX = {
    "resnets": "pictures.py",
    "berts": "language.py",
    "gpt2s": "language.py",
    "llamas": "language.py",
    "t5_loras": "language.py",
    "padded_lstms": "others.py",
    "gans": "others.py",
    "vaes": "others.py",
    "reinforces": "others.py",
    "graphs": "others.py",
}
SEARCHES = dict.fromkeys(("search_100", "search_200", "search_500"), "search.py")
CRASHING = "crashing"
MORE_SECONDS, FIRST_STEP_SECONDS = 3.0, 15.0
OVER_JOBLIB = {"search_100": 1.5, "search_200": 2.0, "search_500": 1.5}
LEAST_TRAINING = {"search_500": 0.9}
WAYS = {"loop": "one_after_another.py", "two": "two_at_a_time.py", "joblib": "joblib_pool.py"}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*SIX, *SEARCHES, CRASHING)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(every))
    arguments.add_argument("--rounds", type=int, default=3, help="how often each is run; medians are compared")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a few steps of each; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.names) - set(every):
        arguments.error(f"NAME must be one of {', '.join(every)}, got {', '.join(sorted(unknown))}")
    if chosen.quick:
        os.environ["DOVETAIL_BENCH_STEPS"], chosen.rounds = "20", 1
    rows, bars = [], []
    for name in chosen.names or every:
        row, more = crash() if name == CRASHING else whole(name, chosen.rounds)
        rows.append(row)
        bars += more
        print(row, flush=True)
    return finish("first_week", rows, bars, check=chosen.check, quick=chosen.quick, part_by="program")


def whole(name: str, rounds: int) -> tuple[dict[str, Any], list[Bar]]:
    """One kind of program, whole against whole, and stopped and resumed."""
    ways = ("joblib",) if name in SEARCHES else ("loop", "two")
    seconds: dict[str, list[float]] = {way: [] for way in ("dovetail", *ways)}
    training: list[float] = []
    for _ in range(rounds):  # by turns, since a machine is faster or slower for minutes
        with tempfile.TemporaryDirectory() as folder:
            seconds["dovetail"].append(timed(run_words(place(name), Path(folder) / "store"))[0])
            done = [task.status for task in open_result(Path(folder) / "store").tasks]
            training.append(training_share(Path(folder) / "store"))
        for way in ways:
            seconds[way].append(timed(script_words(WAYS[way], place(name)))[0])
    middle = {way: statistics.median(each) for way, each in seconds.items()}
    row: dict[str, Any] = {"program": name, "tasks": len(done), "finished": done.count("finished")}
    row |= {f"{way}_seconds": each for way, each in middle.items()}
    row["training_share"] = statistics.median(training)
    bars = [Bar(f"{name}, share of tasks that finish", done.count("finished") / len(done), least=1.0)]
    if name in LEAST_TRAINING:
        bars += [
            Bar(f"{name}, share of the cores' time spent training", row["training_share"], least=LEAST_TRAINING[name])
        ]
    if name in SEARCHES:
        row["over_joblib"] = middle["joblib"] / middle["dovetail"]
        return row, [*bars, Bar(f"{name}, times faster than joblib", row["over_joblib"], least=OVER_JOBLIB[name])]
    better = min(middle["loop"], middle["two"])
    wrong, steps = stopped_and_resumed(name)
    row |= {"over_better": better / middle["dovetail"], "stopped_at_step": steps, "wrong": len(wrong)}
    print("\n".join(wrong), end="\n" if wrong else "")
    return row, [
        *bars,
        Bar(f"{name}, seconds beyond the better plain way", middle["dovetail"] - better, most=MORE_SECONDS),
        Bar(f"{name}, tasks that end otherwise for a stop", float(len(wrong)), most=0.0),
        Bar(f"{name}, steps taken when it was stopped", float(steps), least=1.0),
    ]


def training_share(home: Path) -> float:
    """The part of all cores' time, from the run's first event to its last, that went into steps and evaluations."""
    with Store(home) as store:
        events = [event for _, event in store.events()]
    released = [event for event in events if isinstance(event, DevicesReleased)]
    found = account(released, devices=os.cpu_count() or 1, moments=[event.at_seconds for event in events])
    print({cause: round(found.share(cause), 3) for cause in found.seconds}, f"{found.whole_seconds:.1f} s", flush=True)
    return found.share("training") + found.share("waiting for data") + found.share("evaluating")


def place(name: str) -> str:
    """The workload of this name, as commands take it."""
    return f"{SWEEPS / (SIX | SEARCHES)[name]}:{name}"


def stopped_and_resumed(name: str) -> tuple[list[str], int]:
    """What differs between an undisturbed run and one that was interrupted once, and how many steps had been saved of
    unfinished tasks when it was. Both with `--exact`: which technique trains is then no matter of time."""
    found = Findings()
    with tempfile.TemporaryDirectory() as folder:
        calm, stormy = Path(folder) / "calm", Path(folder) / "stormy"
        timed(run_words(place(name), calm, "--exact"))
        process = subprocess.Popen(
            run_words(place(name), stormy, "--exact", "--save-seconds", "0.2"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not saved_steps(stormy):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)
        steps = saved_steps(stormy)
        timed(run_words(place(name), stormy, "--exact"))
        for task in open_result(calm).tasks:
            folders = [home / "checkpoints" / task.task.identity for home in (stormy, calm)]
            compare_checkpoints(task.name, folders[0], folders[1], task.step, found)
    return found.wrong, steps


def saved_steps(home: Path) -> int:
    """The steps that were saved of tasks that have not ended."""
    try:
        with Store(home) as store:
            events = [event for _, event in store.events()]
    except StoreError:  # none yet
        return 0
    ended = {event.task for event in events if event.kind == "finished"}
    saved = [event for event in events if isinstance(event, CheckpointSaved) and event.task not in ended]
    return max((event.step for event in saved), default=0)


def crash() -> tuple[dict[str, Any], list[Bar]]:
    """Thirty programs of which four end their process: when the first good one takes its first step."""
    with tempfile.TemporaryDirectory() as folder:
        home, began = Path(folder) / "store", time.time()
        words = run_words(str(SWEEPS / "crashing.py"), home)
        subprocess.run(words, env=environment(), capture_output=True, check=False)  # it ends with 1: four have failed
        seconds = time.time() - began
        with Store(home) as store:
            events = [event for _, event in store.events()]
        first = min(event.at_seconds for event in events if isinstance(event, AttemptStarted | StepsDone)) - began
        statuses = [task.status for task in open_result(home).tasks]
    row = {"program": CRASHING, "tasks": len(statuses), "finished": statuses.count("finished")}
    row |= {"first_step_seconds": first, "dovetail_seconds": seconds}
    return row, [
        Bar("crashing, good tasks that finish", float(statuses.count("finished")), least=26.0),
        Bar("crashing, bad tasks that are set aside", float(statuses.count("failed")), least=4.0),
        Bar("crashing, seconds to the first good step", first, most=FIRST_STEP_SECONDS),
    ]


if __name__ == "__main__":
    sys.exit(main())
