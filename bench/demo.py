"""What Dovetail is for, on this machine: a sweep by `dovetail run`, next to the same tasks in a plain PyTorch loop.

24 tasks of four architectures over learning rates and seeds, on real data (`recipes/sweep.py`). The plain loop is one
process that trains them one after another with torch's default threads (`one_after_another.py`): same programs, same
seeds, same steps. Both are whole commands, timed from start to end, imports and all. Accuracies of both stand side by
side: they differ as two seeds differ, because the two draw their random numbers in another order.
`python bench/demo.py [WORKLOAD [STORE]] [--check] [--quick]`; `--check` holds it to its bars and writes the results.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from commands import run_words, script_words, timed
from reporting import Bar, finish, machine
from rich.console import Console

from dovetail.control import Result, open_result
from dovetail.vocabulary.units import show_seconds

ROOT = Path(__file__).parent.parent
LEAST_GAIN, MOST_SECONDS, MOST_BELOW = 1.8, 180.0, 0.02


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("workload", nargs="?", default=str(ROOT / "recipes" / "sweep.py"))
    arguments.add_argument("store", nargs="?", type=Path, default=ROOT / ".dovetail" / "demo")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed; write the results")
    arguments.add_argument("--quick", action="store_true", help="writes nothing")
    chosen = arguments.parse_args()
    console = Console()
    # A demo measures, so it starts from nothing each time; your own runs go on where they stopped.
    shutil.rmtree(chosen.store, ignore_errors=True)
    console.print(f"[bold]dovetail run {chosen.workload}[/bold]   ({machine()})", highlight=False)
    ours, _ = timed(run_words(chosen.workload, chosen.store))
    console.print("[bold]the same tasks in a plain PyTorch loop[/bold]")
    theirs, printed = timed(script_words("one_after_another.py", chosen.workload))
    report = chosen.store / "report.html"
    timed([sys.executable, "-m", "dovetail", "report", "--store", str(chosen.store), "-o", str(report)])
    result, plain = open_result(chosen.store), json.loads(printed)
    rows = accuracies(result, plain)
    below = max(row["plain_mean"] - row["mean_accuracy"] for row in rows)
    bars = [
        Bar("gain, whole command against whole plain loop", theirs / ours, least=LEAST_GAIN),
        Bar("seconds for both", ours + theirs, most=MOST_SECONDS),
        Bar("mean accuracy below the plain loop's, worst architecture", below, most=MOST_BELOW),
    ]
    rows.append(durations(result, plain, ours=ours, theirs=theirs))
    code = finish("demo", rows, bars, check=chosen.check, quick=chosen.quick or not chosen.check)
    console.print(
        f"dovetail run: {show_seconds(ours)}, of which training {show_seconds(result.makespan_seconds)} (planned "
        f"{show_seconds(result.planned_seconds)}); plain loop: {show_seconds(theirs)}; gain {theirs / ours:.2f} ×",
        highlight=False,
    )
    console.print(f"report: {report}", highlight=False, soft_wrap=True)
    return code


def accuracies(result: Result, plain: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each architecture: its tasks' accuracies, ours and the plain loop's."""
    ours = {task.name: task.metrics.get("accuracy", float("nan")) for task in result.tasks}
    theirs = {row["task"]: row["metrics"].get("accuracy", float("nan")) for row in plain["tasks"]}
    by_architecture: dict[str, list[str]] = defaultdict(list)
    for name in ours:
        by_architecture[name.split()[0]].append(name)
    return [
        {
            "architecture": architecture,
            "tasks": len(names),
            "mean_accuracy": statistics.mean(ours[name] for name in names),
            "plain_mean": statistics.mean(theirs[name] for name in names),
            "best_accuracy": max(ours[name] for name in names),
            "plain_best": max(theirs[name] for name in names),
        }
        for architecture, names in by_architecture.items()
    ]


def durations(result: Result, plain: dict[str, Any], *, ours: float, theirs: float) -> dict[str, Any]:
    """The last row: how long all of it took."""
    return {
        "architecture": "all",
        "tasks": len(result.tasks),
        "seconds": ours,
        "plain_seconds": theirs,
        "training_seconds": result.makespan_seconds,
        "planned_seconds": result.planned_seconds,
        "plain_training_seconds": plain["seconds"],
        "plain_threads": plain["threads"],
    }


if __name__ == "__main__":
    sys.exit(main())
