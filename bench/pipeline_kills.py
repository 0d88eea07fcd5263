"""Ranks of a pipeline killed or stopped at random moments: each time the order must end in seconds with the rank's
name, the next attempt must go on from the last checkpoint, and in the end weights must be those of a run left alone.

`python bench/pipeline_kills.py [--kills 50] [--timetable 1f1b] [--quick] [--check]`
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import argparse
import os
import random
import signal
import tempfile
import time
from typing import Any

import torch
from reporting import Bar, finish

from dovetail.engines import LocalEngine, MemberOrder
from dovetail.engines.base import Order
from dovetail.train import TrainingState, checkpoint
from dovetail.vocabulary import Cluster, Event, Kind, Program, Stop, Task

STEPS, SAVE_EVERY = 300, 5
SILENCE_SECONDS = 10.0
CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
DEVICES = ("n0:0", "n0:1")


class Runs:
    """Orders of one task after another on the same engine."""

    def __init__(self, home: Path, *, timetable: str, steps: int) -> None:
        self.engine = LocalEngine(CLUSTER, home=home, silence_seconds=SILENCE_SECONDS)
        self._home, self._timetable, self._steps, self._orders = home, timetable, steps, 0

    def start(self, name: str, attempt: int) -> Order:
        """An attempt at the task of this name."""
        self._orders += 1
        program = Program(reference=f"{ROOT / 'bench' / 'sweeps' / 'pipelined.py'}:tower")
        task = Task(name=name, program=program, stop=Stop(steps=self._steps))
        directory = self._home / "checkpoints" / name
        member = MemberOrder(task=task, attempt=attempt, until_step=self._steps, directory=str(directory))
        order = Order(
            name=f"order-{self._orders}",
            purpose="train",
            members=(member,),
            devices=DEVICES,
            technique="pipeline",
            knobs={"timetable": self._timetable},
            save_every_steps=SAVE_EVERY,
        )
        directory.mkdir(parents=True, exist_ok=True)
        self.engine.start(order)
        return order

    def until(self, *kinds: str, seconds: float = 300.0) -> list[Event]:
        """Everything up to the first event of one of these kinds; raises after so long."""
        start, found = time.monotonic(), []
        while not any(event.kind in kinds for event in found):
            found += self.engine.wait()
            if time.monotonic() - start > seconds:
                raise TimeoutError(f"none of {kinds} within {seconds} s")
        return found

    def state(self, name: str) -> TrainingState | None:
        """The newest checkpoint of a task."""
        return checkpoint.recover(self._home / "checkpoints" / name)[0]


def strike(runs: Runs, order: Order, chance: random.Random) -> dict[str, Any] | None:
    """Let an order train for a moment and kill one of its ranks; what came of it, or None if it had ended."""
    events = runs.until("saved", "released")
    due = time.monotonic() + chance.uniform(0.0, 0.6)
    while time.monotonic() < due:
        events += runs.engine.wait()
    kinds = {event.kind for event in events}
    if kinds & {"finished", "released"}:  # whoever is killed from here on has nothing left to lose
        if "released" not in kinds:
            runs.until("released")
        return None
    victim, sign = chance.randrange(2), signal.SIGKILL if chance.random() < 0.9 else signal.SIGSTOP
    os.kill(runs.engine._workers[DEVICES[victim],].process.pid, sign)
    start = time.monotonic()
    events += runs.until("released")  # it may have finished before the kill, and only not been released yet
    seconds = time.monotonic() - start
    ends = [event for event in events if event.kind in ("finished", "lost", "failed")]
    if any(event.kind == "finished" for event in ends):
        return None
    reason = ends[-1].reason if ends else ""
    named = f"rank {victim} of 2 on {DEVICES[victim]} is lost" in reason and "it was at: " in reason
    return {"signal": sign.name, "rank": victim, "seconds": seconds, "is_named": named, "reason": reason}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--timetable", default="1f1b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one kill; writes nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kills, steps = (1, 40) if arguments.quick else (arguments.kills, STEPS)
    chance, struck, equal, tasks = random.Random(arguments.seed), [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), timetable=arguments.timetable, steps=steps)
        try:
            runs.start("undisturbed", 1)
            runs.until("released")
            expected = runs.state("undisturbed")
            assert expected is not None
            while len(struck) < kills:
                tasks, attempt = tasks + 1, 0
                name = f"killed-{tasks}"
                is_over = False
                while not is_over:
                    attempt += 1
                    order = runs.start(name, attempt)
                    if len(struck) < kills and (found := strike(runs, order, chance)) is not None:
                        struck.append(found)
                        continue
                    if len(struck) >= kills or not _has_ended(runs, name, steps):
                        runs.until("released")
                    is_over = _has_ended(runs, name, steps)
                state = runs.state(name)
                assert state is not None
                equal += all(torch.equal(state.tensors[n], tensor) for n, tensor in expected.tensors.items())
        finally:
            runs.engine.close()
    for each in struck:
        if not each["is_named"]:
            print(f"{each['signal']} of rank {each['rank']} gave: {each['reason']}", file=sys.stderr)
    rows = [
        {
            "signal": sign,
            "kills": len(mine),
            "longest_seconds": max(each["seconds"] for each in mine),
            "rank_and_action_named": sum(each["is_named"] for each in mine),
        }
        for sign in ("SIGKILL", "SIGSTOP")
        if (mine := [each for each in struck if each["signal"] == sign])
    ]
    bars = [
        Bar("longest seconds from a kill to the order's end", max(each["seconds"] for each in struck), most=30.0),
        Bar(
            "share of ends that name the rank and its last action",
            sum(e["is_named"] for e in struck) / len(struck),
            least=1.0,
        ),
        Bar("share of tasks that end with the undisturbed weights", equal / tasks, least=1.0),
    ]
    return finish("pipeline_kills", rows, bars, check=arguments.check, quick=arguments.quick)


def _has_ended(runs: Runs, name: str, steps: int) -> bool:
    state = runs.state(name)
    return state is not None and state.step >= steps


if __name__ == "__main__":
    raise SystemExit(main())
