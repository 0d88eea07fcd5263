"""Faults lose nothing: workers and controllers killed, paused and stopped at random moments, `dovetail run` started
again whenever it died, and then everything that the run left held against what must be so (`invariants`): against an
undisturbed run, bit by bit, and against a bare PyTorch loop of the same seeds. The latter for those tasks that draw no
random numbers while they train (half of them), because a bare loop draws in another order; they, too, to the bit. On
Ray, whose nodes here have one device each, some are pipelines over several nodes.

`python bench/chaos.py --kills 200 [--engine ray] [--seed 0] [--quick] [--check]`
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from invariants import Acknowledged, Findings, Step, acknowledged, at_work, began, check, lost, witness_of
from nemesis import Fault, Local, Nemesis, Place, RayNodes, begin, command, forgotten
from reporting import Bar, finish
from rich.console import Console

from dovetail.describe import load_workload

SWEEPS = Path(__file__).parent / "sweeps"
SAVE_EVERY = 10
# A run that makes no headway for so long hangs.
PATIENCE_SECONDS = 300.0
# Recovery is measured where training was under way when the fault came: a step within so many seconds before it.
AT_WORK_SECONDS = 1.0
# A nemesis that finds nobody in so many rounds on end is blind.
ROUNDS_WITHOUT_FAULTS = 5


class Round:
    """One run of the sweep from nothing to its end, however often it has to be started again."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place, self.home, self._log = place, folder / "store", folder / "log"
        self._sweep = sweep_of(place)
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        self.witness = Path(os.environ["DOVETAIL_WITNESS"])
        self.ranks = self.witness.with_name(self.witness.name + ".ranks")  # of those that compute no loss, too
        for each in (self.witness, self.ranks):
            each.unlink(missing_ok=True)
        self.seen: Acknowledged = {}
        self.lost: list[str] = []
        self.starts = 0

    def run(self, nemesis: Nemesis | None = None) -> None:
        """To the end; raises where the command fails or hangs."""
        code = -9
        while code == -9:  # killed, and not by its own doing: start it again
            self.starts += 1
            words = command(self._place, self._sweep, self.home, save_every=SAVE_EVERY)
            process = begin(words, os.environ | {"TMPDIR": str(self._temporary)}, self._log)
            if nemesis:
                nemesis.rest()
            heard, size = time.monotonic(), 0
            while (code_or_none := process.poll()) is None:
                if nemesis:
                    nemesis.strike(process.pid, self._training, self._note)
                time.sleep(0.02)
                grown = self.witness.stat().st_size if self.witness.exists() else 0
                if grown != size:
                    heard, size = time.monotonic(), grown
                if time.monotonic() - heard > PATIENCE_SECONDS:
                    process.kill()
                    raise TimeoutError(f"no step was taken for {PATIENCE_SECONDS:.0f} s; see {self._log}")
            code = code_or_none
        if code != 0:
            raise RuntimeError(f"dovetail run ended with {code}; see {self._log}")

    def forgotten(self) -> list[str]:
        """The temporary files that it left, however often it was killed."""
        return forgotten(self._temporary, self.home)

    def _training(self) -> set[int]:
        """The processes that train now. Those of trials are none: everybody trains here before the first attempt."""
        now = at_work(self.witness) | at_work(self.ranks)
        return now if now and began(self.home) else set()

    def _note(self) -> None:
        # What was lost and trained again is lost all the same: so now, and not only at the end.
        now = acknowledged(self.home)
        self.lost += lost(self.seen, now)
        self.seen |= now


def sweep_of(place: Place) -> Path:
    """What is trained there."""
    return SWEEPS / ("witnessed_gangs.py" if isinstance(place, RayNodes) else "witnessed.py")


def met_at_work(fault: Fault, trained: list[Step], ranks: list[Step]) -> list[Step]:
    """The last steps before a fault of the trainings that it ended; none where it met no training. `ranks` tell which
    processes were at work besides those whose steps these are."""
    if not fault.kind.endswith(("killed", "lost", "notice", "stopped")):
        return []
    near = {step.build: step for step in trained if fault.at - AT_WORK_SECONDS < step.at <= fault.at}
    if fault.kind.startswith("controller"):
        return list(near.values())
    if fault.kind == "node lost":  # which were on it is seen by their taking no more steps
        on = {step.build for step in trained if step.at > fault.at + AT_WORK_SECONDS}
        return [step for build, step in near.items() if build not in on]
    recent = [rank for rank in ranks if fault.at - AT_WORK_SECONDS < rank.at <= fault.at]
    marks = {rank.mark for rank in recent if rank.process == fault.process}
    return [step for step in near.values() if step.process == fault.process or step.mark in marks]


def recovery_seconds(fault: Fault, trained: list[Step], ranks: list[Step], *, bound: bool) -> float | None:
    """From a fault to the next step of another attempt on the cores that it hit; where processes keep to none (or
    nothing more was to be trained there), to the next step of the tasks that it hit. None where it met no training, or
    their last steps. `trained` are the steps of attempts, without those of trials."""
    hit = met_at_work(fault, trained, ranks)
    before = {step.build for step in trained if step.at <= fault.at}
    later = [step for step in trained if hit and step.at > fault.at and step.build not in before]
    cores = {core for step in hit for core in step.cores} if bound else set()
    marks = {step.mark for step in hit}
    there = [step for step in later if cores & set(step.cores)] or [step for step in later if step.mark in marks]
    return min((step.at - fault.at for step in there), default=None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds from one fault to the next")
    parser.add_argument("--quick", action="store_true", help="five kills")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    kills = min(arguments.kills, 5) if arguments.quick else arguments.kills
    tasks, steps = (3, 600) if arguments.quick else (8, 1000)
    gangs = 0
    if arguments.engine == "ray":  # where all that is started takes its time
        tasks, gangs, steps = (2, 1, 300) if arguments.quick else (4, 2, 600)
    folder = Path(tempfile.mkdtemp(prefix="dovetail-chaos-"))
    # Before there is a cluster: some of its processes have the variables of when it began.
    os.environ |= {
        "DOVETAIL_WITNESS": str(folder / "witness"),
        "DOVETAIL_BENCH_STEPS": str(steps),
        "DOVETAIL_BENCH_TASKS": str(tasks),
        "DOVETAIL_BENCH_GANGS": str(gangs),
        "OMP_NUM_THREADS": "1",
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever ends this bench ends the cluster it started
    place: Place = RayNodes() if arguments.engine == "ray" else Local()
    try:
        every = 1.5 if arguments.quick else arguments.every
        found = bench(place, folder, arguments.seed, kills, every, tasks + gangs, steps)
    finally:
        place.close()
    name = "chaos" if arguments.engine == "local" else "chaos-ray"
    code = report(name, found, kills, arguments)
    if not found["wrong"]:
        shutil.rmtree(folder)
    return code


def bench(place: Place, folder: Path, seed: int, kills: int, every: float, tasks: int, steps: int) -> dict[str, Any]:
    """Rounds until the nemesis has killed often enough; what was found in all of them."""
    console = Console(stderr=True)
    undisturbed = Round(place, folder / "undisturbed")
    undisturbed.run()
    bare = bare_loop(sweep_of(place), folder / "bare")
    nemesis = Nemesis(place, seed=seed, kills=kills, every_seconds=every)
    expected: dict[str, Any] = {
        "reference": undisturbed.home,
        "save_every": SAVE_EVERY,
        "tasks": tasks,
        "steps": steps,
        "bound": place.bound,
        "bare": bare,
    }
    found: dict[str, Any] = {"bare": len(bare), "recovered": {}, "met": {}, "redone": [], "forgotten": []}
    found |= dict.fromkeys(("rounds", "starts", "steps", "finished", "noted", "idle", "spread", "spread_lost"), 0)
    # What the others are held against must be sound itself.
    itself = check(undisturbed.home, witness_of(undisturbed.witness), seen={}, **expected)
    found["wrong"] = [f"undisturbed: {line}" for line in itself.wrong]
    while not nemesis.satisfied and not found["wrong"] and found["idle"] < ROUNDS_WITHOUT_FAULTS:
        begun = len(nemesis.faults)
        one = Round(place, folder / f"round-{found['rounds']}")
        try:
            one.run(nemesis)
        except (RuntimeError, TimeoutError) as error:
            found["wrong"].append(str(error))
            break
        witness = witness_of(one.witness)
        findings = check(one.home, witness, seen=one.seen, **expected)
        add(found, one, findings, nemesis.faults[begun:], witness, bound=place.bound)
        console.print(
            f"round {found['rounds']}: {len(nemesis.faults) - begun} faults, {one.starts} starts, "
            f"{nemesis.kills} of {kills} kills, {len(findings.wrong)} invariants broken",
            highlight=False,
        )
        if findings.wrong:
            console.print("\n".join(findings.wrong), highlight=False, markup=False)
        else:
            shutil.rmtree(one.home.parent)
    found["faults"], found["kills"] = nemesis.faults, nemesis.kills
    found["tasks"] = tasks * found["rounds"]
    return found


def bare_loop(sweep: Path, folder: Path) -> dict[str, Path]:
    """Train the sweep in a bare PyTorch loop with one thread; the tensors of the tasks that draw nothing, by name."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "DOVETAIL_WITNESS"}
    script = Path(__file__).parent / "one_after_another.py"
    words = [sys.executable, str(script), str(sweep), str(folder)]
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    return {
        task.name: folder / f"{task.name}.st"
        for task in load_workload(str(sweep)).tasks
        if not task.parameters.get("draws")
    }


def add(
    found: dict[str, Any], one: Round, findings: Findings, faults: list[Fault], witness: list[Step], *, bound: bool
) -> None:
    """Count in what came of a round."""
    findings.wrong += one.lost
    ended = sum(fault.kind == "controller killed" for fault in faults)
    if one.starts - 1 > ended:
        findings.wrong.append(f"its controller was killed {ended} times, and had to be started {one.starts} times")
    found["wrong"] += findings.wrong
    found["redone"] += findings.redone
    found["steps"] += findings.steps
    found["finished"] += findings.finished
    found["spread"] += findings.spread
    found["spread_lost"] += findings.spread_lost
    found["forgotten"] += one.forgotten()
    found["noted"] += len(one.seen)
    found["idle"] = 0 if faults else found["idle"] + 1
    found["rounds"] += 1
    found["starts"] += one.starts
    trained, ranks = [step for step in witness if step.build in findings.trained], witness_of(one.ranks)
    for fault in faults:
        found["met"][fault.kind] = found["met"].get(fault.kind, 0) + bool(met_at_work(fault, trained, ranks))
        seconds = recovery_seconds(fault, trained, ranks, bound=bound)
        if seconds is not None:
            found["recovered"].setdefault(fault.kind, []).append(seconds)


def report(name: str, found: dict[str, Any], kills: int, arguments: argparse.Namespace) -> int:
    """The table of faults and the bars."""
    rows = []
    kinds = list(dict.fromkeys(fault.kind for fault in found["faults"]))
    every = [second for seconds in found["recovered"].values() for second in seconds]
    for kind, met, seconds in [
        *((kind, found["met"].get(kind, 0), found["recovered"].get(kind, [])) for kind in kinds),
        ("all", sum(found["met"].values()), every),
    ]:
        rows.append(
            {
                "fault": kind,
                "times": sum(kind in (fault.kind, "all") for fault in found["faults"]),
                "met_training": met,
                "recoveries": len(seconds),
                "p50_seconds": quantile(seconds, 0.50),
                "p95_seconds": quantile(seconds, 0.95),
                "most_seconds": max(seconds, default=None),
            }
        )
    print(
        f"{found['rounds']} rounds, {found['tasks']} tasks, {found['starts']} starts of dovetail run, {found['steps']} "
        f"steps taken, {sum(found['redone'])} of them again, a save every {SAVE_EVERY}, {found['noted']} metrics noted "
        f"just before faults, {found['bare']} tasks a round also held against a bare loop, seed {arguments.seed}"
    )
    for line in found["wrong"]:
        print(f"broken: {line}")
    if found["forgotten"]:
        print(f"left in temporary folders: {found['forgotten']}")
    bars = [
        Bar("kills", found["kills"], least=kills),
        Bar("faults that met a training", sum(found["met"].values()), least=kills / 4),
        Bar("tasks a round that a bare loop was held against", found["bare"], least=1),
        Bar("share of tasks that finished", found["finished"] / found["tasks"] if found["tasks"] else 0.0, least=1),
        Bar("metrics noted just before faults", found["noted"], least=1),
        Bar("temporary files left", len(found["forgotten"]), most=0),
        Bar("invariants broken", len(found["wrong"]), most=0),
        Bar("steps redone by one attempt, at most", max(found["redone"], default=0), most=SAVE_EVERY),
    ]
    if arguments.engine == "ray":
        bars += [
            Bar("attempts that trained over several nodes", found["spread"], least=1),
            Bar("of these, ended by faults", found["spread_lost"], least=kills // 10),
        ]
    return finish(name, rows, bars, check=arguments.check, quick=arguments.quick or kills < 50)


def quantile(values: list[float], share: float) -> float | None:
    """That share of the values is no greater."""
    if not values:
        return None
    return (
        values[0]
        if len(values) == 1
        else statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
    )


if __name__ == "__main__":
    sys.exit(main())
