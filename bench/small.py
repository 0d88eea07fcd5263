"""One accelerator, many small models: a sweep by `dovetail run`, imports, trials and planning counted in, beside the
same tasks in a plain eager loop, whole command against whole command.

`python bench/small.py [small|small_other ...] [--steps N] [--long N] [--quick] [--check]`, on one H200. The short sweep
takes the plain loop about a minute; what one of exactly a minute takes lies between measured lengths, and is shown as
such. The long one is run by Dovetail only; what the plain loop would take is extrapolated from its rate between a few
steps and the short sweep, and shown as such. Final losses are compared task by task with the plain loop's, beside what
another seed of the plain loop does. No gang may be slower than its plan says. `--exact` instead runs the short sweep by
`dovetail run --exact` and with every task alone, and compares what they trained, bit by bit. `--quick` runs a few steps
of one task each, on a CPU too, and writes nothing.
"""

import argparse
import collections
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from commands import HERE, run_words, script_words, started, timed
from gang_rates import GangRate, gang_rates
from one_after_another import LAST
from reporting import Bar, finish

from dovetail.control import open_result
from dovetail.train import checkpoint

SWEEPS = ("small", "small_other")
FEW = 20
QUICK = {"DOVETAIL_BENCH_RATES": "1", "DOVETAIL_BENCH_PRECISION": "fp32"}
MINUTE = 60.0
SHORT, LONG = 2.5, 6.0
"""How many times faster than the plain loop a sweep must be that takes it a minute, and ten."""
UNTRIED_OFF, BESIDE_OFF = 0.15, 0.20
"""How far a prediction may be off for a gang that was not tried, and for one side by side."""
SLOWER = 1.1
"""How much slower than its plan says a gang may be: what two runs of the same gang are apart."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("sweeps", nargs="*", default=list(SWEEPS), metavar="SWEEP", help=", ".join(SWEEPS))
    arguments.add_argument("--steps", type=int, default=100, help="of each task of the short sweep")
    arguments.add_argument("--long", type=int, default=1000, help="of each task of the long sweep")
    arguments.add_argument("--exact", action="store_true", help="compare bits with tasks run alone, instead of seconds")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a few steps of each; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.sweeps) - set(SWEEPS):
        arguments.error(f"SWEEP must be one of {', '.join(SWEEPS)}, got {', '.join(sorted(unknown))}")
    if chosen.quick:
        chosen.steps, chosen.long = 4, 6
    rows, bars = [], []
    for name in chosen.sweeps:
        if chosen.exact:
            found = compare_bits(name, steps=chosen.steps, quick=chosen.quick)
        else:
            found = measure(name, steps=chosen.steps, long=chosen.long, quick=chosen.quick)
        rows += found[0]
        bars += found[1]
    bench = "small-exact" if chosen.exact else "small"
    sys.exit(finish(bench, rows, bars, check=chosen.check, quick=chosen.quick, part_by="sweep"))


def measure(name: str, *, steps: int, long: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The rows of a sweep, and its bars."""
    path = str(HERE / "sweeps" / f"{name}.py")
    more = QUICK if quick else {}
    few = min(FEW, steps // 2)
    plain(path, few, **more)  # the first one reads what is installed from the disk
    few_seconds, _ = plain(path, few, **more)
    plain_seconds, losses = plain(path, steps, **more)
    _, others = plain(path, steps, DOVETAIL_BENCH_SEED="1", **more)
    ours, found, used, _ = dovetail(path, steps, **more)
    rate = max(1e-6, (plain_seconds - few_seconds) / (steps - few))
    long_ours, _, long_used, rates = dovetail(path, long, **more)
    expected = plain_seconds + rate * (long - steps)
    apart = statistics.median(abs(found[task] - losses[task]) for task in losses)
    seeds = statistics.median(abs(others[task] - losses[task]) for task in losses)
    count = len(losses)
    minute_steps = round(steps + (MINUTE - plain_seconds) / rate)
    minute = ours + (long_ours - ours) * (minute_steps - steps) / (long - steps)
    rows = [
        row(name, count, steps, plain_seconds, ours, used) | {"loss_apart": apart, "seeds_apart": seeds},
        row(name, count, minute_steps, MINUTE, minute, used) | {"plain_is": "a minute, both between measured lengths"},
        row(name, count, long, expected, long_ours, long_used) | {"plain_is": "extrapolated"},
    ]
    bars = [
        Bar(f"{name}, what takes the plain loop a minute: times faster", MINUTE / minute, least=SHORT),
        Bar(f"{name}, {long} steps: times faster", expected / long_ours, least=LONG),
        Bar(f"{name}, losses apart from the plain loop's, of what two seeds are", apart / seeds, most=1.5),
    ]
    return [*rows, *(gang_row(name, rate) for rate in rates)], bars + prediction_bars(name, rates)


def compare_bits(name: str, *, steps: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """What `dovetail run --exact` trains, beside the same with each task alone on its device."""
    path, rows, states = str(HERE / "sweeps" / f"{name}.py"), [], []
    for words in ((), ("--techniques", "resident")):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "store"
            more = {"DOVETAIL_BENCH_STEPS": str(steps), **(QUICK if quick else {})}
            seconds, _ = timed(run_words(path, home, "--exact", *words), **more)
            states.append({each.name: checkpoint.recover(each.directory)[0] for each in tasks_of(home)})
            counts = {"sweep": name, "tasks": len(states[-1]), "steps": steps}
            rows.append({**counts, "seconds": seconds, "techniques": techniques(home)})
    together, alone = states
    unequal = [task for task in alone if not equal(together[task].tensors, alone[task].tensors)]
    rows[0]["unequal"] = ", ".join(unequal)
    return rows, [Bar(f"{name}, tasks of --exact with other bits than alone", float(len(unequal)), most=0)]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether every tensor of a state is the other's, to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def gang_row(name: str, rate: GangRate) -> dict[str, Any]:
    """A line of the table for a gang of the long sweep."""
    option = rate.option
    seconds = {"predicted_ms": 1e3 * rate.predicted_seconds, "measured_ms": 1e3 * rate.measured_seconds}
    used = f"{option.technique} of {len(option.families)}" + ("" if option.measured else ", not tried")
    return {"sweep": name, "techniques": used, **seconds}


def prediction_bars(name: str, rates: list[GangRate]) -> list[Bar]:
    """How far predictions were off at worst, of gangs that were not tried, and how much slower any gang was."""
    slower = [rate.measured_seconds / rate.predicted_seconds for rate in rates if len(rate.option.families) > 1]
    untried = [rate for rate in rates if len(rate.option.families) > 1 and not rate.option.measured]
    beside = [rate.off for rate in untried if rate.option.technique == "beside"]
    others = [rate.off for rate in untried if rate.option.technique != "beside"]
    return [
        *([Bar(f"{name}, a gang's seconds over its plan's, at worst", max(slower), most=SLOWER)] if slower else []),
        *(
            Bar(f"{name}, prediction of {words} that were not tried, off at worst", max(offs), most=most)
            for words, offs, most in (("gangs", others, UNTRIED_OFF), ("gangs side by side", beside, BESIDE_OFF))
            if offs
        ),
    ]


def row(name: str, count: int, steps: int, plain_seconds: float, ours: float, used: str) -> dict[str, Any]:
    """A line of the table."""
    seconds = {"plain_seconds": plain_seconds, "seconds": ours, "times": plain_seconds / ours}
    return {"sweep": name, "tasks": count, "steps": steps, **seconds, "techniques": used}


def plain(path: str, steps: int, **more: str) -> tuple[float, dict[str, float]]:
    """The plain loop: the seconds of the whole command, and each task's last losses."""
    seconds, line = timed(script_words("one_after_another.py", path), DOVETAIL_BENCH_STEPS=str(steps), **more)
    return seconds, {task["task"]: task["loss"] for task in json.loads(line)["tasks"]}


def dovetail(path: str, steps: int, **more: str) -> tuple[float, dict[str, float], str, list[GangRate]]:
    """`dovetail run`: the seconds of the whole command, each task's last losses, how they were trained, and how fast
    each gang went."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "store"
        seconds, _ = timed(run_words(path, home), DOVETAIL_BENCH_STEPS=str(steps), **more)
        histories = {each.name: each.history["train/loss"] for each in tasks_of(home)}
        losses = {name: statistics.fmean(value for _, value in points[-LAST:]) for name, points in histories.items()}
        return seconds, losses, techniques(home), gang_rates(home)


def tasks_of(home: Path) -> list[Any]:
    """The tasks of a run's result."""
    return list(open_result(home).tasks)


def techniques(home: Path) -> str:
    """How a run's tasks were trained, and how many placements each way."""
    placed = {event.placement: event.option for event in started(home)}
    counts = collections.Counter(f"{option.technique} of {len(option.families)}" for option in placed.values())
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


if __name__ == "__main__":
    main()
