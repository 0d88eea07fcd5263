"""A race with a known outcome: a step that is a fifth faster and learning that takes a fifth fewer steps, each to be
found in its own half of the speed-up; beside it the loop that one would write by hand around the same training.

`python bench/race.py [--quick] [--check]`, on whatever devices there are. Ten seeds of a small network on synthetic
images to an accuracy. The reference sleeps in every step; `quick step` sleeps so much less that its steps take four
fifths, as measured by hand, and `quick learning` has 1.25 times the learning rate, which takes four fifths of the steps
as long as these are small. By hand: the same programs and seeds in one process, one after another, with a clock that is
read when the target is met; every run must take the same number of steps there, and as many seconds.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
from reporting import Bar, finish

import dovetail as dt
from dovetail.metrics.race.contestants import Contestant
from dovetail.metrics.race.outcome import RaceResult
from dovetail.train import RESIDENT, SessionMember
from dovetail.train.build import build
from dovetail.vocabulary import Task

PROGRAM = f"{Path(__file__).with_name('race_program.py')}:net"
TARGET, STEPS, RATE = 0.5, 400, 0.01
PLANTED = 1.25
ROUND = str.maketrans("[]", "()")  # a table takes square brackets for markup


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="three seeds; writes nothing")
    chosen = arguments.parse_args()
    seeds = 3 if chosen.quick else 10
    # What a step takes without its pause is in both, so the shorter pause is what leaves four fifths of the whole.
    # The first one also counts what a device takes to be ready.
    _, bare = (
        by_hand(Task(name="bare", program=program(), stop=dt.Stop(steps=20)), until=2.0)["step_seconds"]
        for _ in range(2)
    )
    pause = max(0.02, 2 * bare)
    ways = {
        "reference": {"rate": RATE, "pause": pause},
        "quick step": {"rate": RATE, "pause": (pause + bare) / PLANTED - bare},
        "quick learning": {"rate": RATE * PLANTED, "pause": pause},
    }
    tasks = [dt.task(PROGRAM, name=name, steps=STEPS, seed=0, **given) for name, given in ways.items()]
    with tempfile.TemporaryDirectory() as folder:
        found = dt.race(
            dt.workload(tasks, name="synthetic images"),
            until=f"accuracy>={TARGET}",
            seeds=seeds,
            reference="reference",
            store=Path(folder) / "store",
            progress=False,
        )
    print(found)
    hand = [by_hand(run.task, until=TARGET) for run in found["reference"].runs]
    rows = [row_of(each, found) for each in found.contestants]
    rows.append(
        {
            "contestant": "reference, by hand",
            "arrived": len(hand),
            "seconds": statistics.fmean(sorted(run["seconds"] for run in hand)[1:-1]),
            "steps": statistics.fmean(sorted(run["steps"] for run in hand)[1:-1]),
            "step_seconds": statistics.median(run["step_seconds"] for run in hand),
        }
    )
    return finish("race", rows, bars_of(found, hand), check=chosen.check, quick=chosen.quick)


def program() -> Any:
    return dt.task(PROGRAM, name="bare", steps=20).program


def by_hand(task: Task, *, until: float) -> dict[str, float]:
    """What one would write: train, evaluate now and then, look at the clock when the target is met."""
    training = build(task)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    session = RESIDENT.open([SessionMember(training=training, seed=task.seed)], device=device, threads=1)
    every, evaluated = training.evaluate_every or 1, 0.0
    began = time.perf_counter()
    for step in range(1, (task.stop.steps or STEPS) + 1):
        session.advance()
        if step % every == 0:
            if device.type == "cuda":
                torch.cuda.synchronize()
            before = time.perf_counter()
            accuracy = session.evaluate()["accuracy"]
            evaluated += time.perf_counter() - before
            if accuracy >= until:
                break
    seconds = time.perf_counter() - began
    session.close()
    return {"seconds": seconds, "steps": float(step), "step_seconds": (seconds - evaluated) / step}


def row_of(each: Contestant, found: RaceResult) -> dict[str, Any]:
    compared = next((one for one in found.speed_ups if one.contestant == each.name), None)
    names = ("total", "systems", "statistical", "other")
    parts = {name: str(getattr(compared, name)).translate(ROUND) if compared else None for name in names}
    known, phases = each.time("mlperf"), each.phase_seconds()
    return {
        "contestant": each.name,
        "arrived": each.arrived_count,
        "seconds": known.value,
        "interval": f"{known.low:.4g} to {known.high:.4g}",
        "by_dawnbench": each.time("dawnbench").value,
        "interpolated": each.interpolated_time("mlperf").value,
        "steps": each.steps.value,
        "step_seconds": each.step_seconds.value,
        **parts,
        **{f"{name}_seconds": phases.get(name, 0.0) for name in ("start", "read", "train", "evaluate", "save")},
    }


def bars_of(found: RaceResult, hand: list[dict[str, float]]) -> list[Bar]:
    step, learning = (
        next(each for each in found.speed_ups if each.contestant == name) for name in ("quick step", "quick learning")
    )
    known = found["reference"].time("mlperf")
    assert known.low is not None
    assert known.high is not None
    runs = found["reference"].runs
    return [
        Bar(
            "runs that never arrived",
            float(sum(len(each.runs) - each.arrived_count for each in found.contestants)),
            most=0,
        ),
        Bar("quick step, systems speed-up", step.systems.value, least=1.17, most=1.33),
        Bar("quick step, statistical speed-up", step.statistical.value, least=0.999, most=1.001),
        Bar("quick learning, systems speed-up", learning.systems.value, least=0.95, most=1.05),
        Bar("quick learning, statistical speed-up", learning.statistical.value, least=1.17, most=1.33),
        Bar("half the interval over the mean", (known.high - known.low) / 2 / known.value, most=0.1),
        Bar("runs with other steps than by hand", float(_differ(runs, hand)), most=0),
        Bar(
            "seconds a step over those by hand",
            found["reference"].step_seconds.value / statistics.median(run["step_seconds"] for run in hand),
            least=0.9,
            most=1.1,
        ),
    ]


def _differ(runs: Any, hand: list[dict[str, float]]) -> int:
    return sum(run.steps != other["steps"] for run, other in zip(runs, hand, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
