"""The main job on this machine: a sweep of real models on real data, measured, planned, trained and reported, next
to the same tasks one after another with all cores each in one bare process.

Both are whole commands, timed from their start to their end, imports and all.
`python bench/demo.py [WORKLOAD [STORE]] [--keep]`; `--keep` writes the durations where the README has its figures from.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from reporting import RESULTS, machine, today
from rich.console import Console
from rich.table import Table

from dovetail.control import Result, open_result
from dovetail.vocabulary.units import show_seconds

ROOT = Path(__file__).parent.parent


def main() -> None:
    given = [word for word in sys.argv[1:] if word != "--keep"]
    workload = given[0] if given else str(ROOT / "recipes" / "digits.py")
    home = Path(given[1]) if len(given) > 1 else ROOT / ".dovetail" / "demo"
    console = Console()
    # A demo measures, so it starts from nothing each time; your own runs go on where they stopped.
    shutil.rmtree(home, ignore_errors=True)
    console.print(f"[bold]dovetail run {workload}[/bold]   ({machine()})", highlight=False)
    began = time.perf_counter()
    command([sys.executable, "-m", "dovetail", "run", workload, "--store", str(home), "--json"])
    ours = time.perf_counter() - began
    console.print("[bold]the same tasks one after another, all cores each, in one bare process[/bold]")
    began = time.perf_counter()
    bare = json.loads(command([sys.executable, str(ROOT / "bench" / "one_after_another.py"), workload]))
    theirs = time.perf_counter() - began
    report = home / "report.html"
    command([sys.executable, "-m", "dovetail", "report", "--store", str(home), "-o", str(report)])
    result = open_result(home)
    show(console, result, bare, ours=ours, theirs=theirs)
    if "--keep" in sys.argv:
        keep(result, bare, ours=ours, theirs=theirs)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def command(words: list[str]) -> str:
    """Run a command, its errors and progress on this terminal; gives its output."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed with exit code {done.returncode}")
    return done.stdout


def keep(result: Result, bare: dict[str, Any], *, ours: float, theirs: float) -> None:
    """Write the four durations where the README takes its figures from."""
    found = {
        "date": today(),
        "machine": machine(),
        "tasks": len(result.tasks),
        "planned_makespan_seconds": result.planned_seconds,
        "measured_makespan_seconds": result.makespan_seconds,
        "whole_command_seconds": ours,
        "bare_training_seconds": bare["seconds"],
        "bare_whole_process_seconds": theirs,
    }
    (RESULTS / "demo.json").write_text(json.dumps(found, indent=2) + "\n")


def show(console: Console, result: Result, bare: dict[str, Any], *, ours: float, theirs: float) -> None:
    """The results of every task, then the four durations."""
    others = {row["task"]: row for row in bare["tasks"]}
    table = Table(title="What was learned", title_justify="left")
    table.add_column("task", no_wrap=True)
    for name in ("steps", "accuracy", "bare loop's", "bare s"):
        table.add_column(name, justify="right")
    for task in result.tasks:
        other = others[task.name]
        accuracy = [f"{metrics.get('accuracy', float('nan')):.3f}" for metrics in (task.metrics, other["metrics"])]
        table.add_row(task.name, str(task.step), *accuracy, f"{other['seconds']:.1f}")
    console.print(table)
    times = Table(title="How long it took", title_justify="left", show_header=False)
    times.add_column()
    times.add_column(justify="right")
    times.add_row("planned makespan", show_seconds(result.planned_seconds))
    times.add_row("measured makespan", show_seconds(result.makespan_seconds))
    times.add_row("the whole command: imports, trials, planning, training", show_seconds(ours))
    times.add_row(f"one after another with {bare['threads']} threads each, whole process", show_seconds(theirs))
    times.add_row("gain, whole against whole", f"{theirs / ours:.2f} ×")
    times.add_row("gain, training alone", f"{bare['seconds'] / result.makespan_seconds:.2f} ×")
    console.print(times)


if __name__ == "__main__":
    main()
