"""Whole commands, timed from start to end: what a user waits for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def environment(**variables: str) -> dict[str, str]:
    """This process's environment and these variables. What is installed is compiled once, not in every process."""
    found = os.environ | variables
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def run_words(workload: str, home: Path, *more: str) -> list[str]:
    """`dovetail run` of a workload with a store of its own."""
    return [sys.executable, "-m", "dovetail", "run", workload, "--store", str(home), "--json", *more]


def script_words(script: str, workload: str) -> list[str]:
    """One of the plain ways that lie in this folder, of the same workload."""
    return [sys.executable, str(HERE / script), workload]


def timed(words: list[str], **variables: str) -> tuple[float, str]:
    """The seconds of a command, and the last line that it printed. It ends the bench where the command fails."""
    began = time.perf_counter()
    done = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=False, env=environment(**variables), cwd=HERE.parent
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed with exit code {done.returncode}")
    return time.perf_counter() - began, done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def stopped_after(seconds: float, words: list[str], **variables: str) -> None:
    """A command that is asked to stop after so many seconds, if it has not ended by then."""
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment(**variables), cwd=HERE.parent)
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
        running.wait()


def started(home: Path) -> list[Any]:
    """The placements that a run began."""
    from dovetail.store import Store

    with Store(home) as store:
        return [event for _, event in store.events() if event.kind == "started"]
