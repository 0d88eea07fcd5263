"""River and Evidently on the streams of `bench/drift.py`, in an environment of their own.

`python bench/drift_peers.py PART FOLDER` runs one of `hitters`, `river`, `evidently` inside it on the files of a folder
and prints what came of it as JSON; `ask(part, folder)` makes the environment and runs it there.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# One after another: together they keep pip searching for minutes. Evidently does not import with pandas 3.
PACKAGES = ("river==0.26.1", "evidently==0.7.23", "pandas==2.3.3")
WINDOW_ROWS = 5_000


def ensure() -> tuple[Path | None, str]:
    """The Python of the environment, made and filled where it is not there yet; or None and why."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "dovetail-bench" / "drift"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
            for package in PACKAGES:
                subprocess.run([str(python), "-m", "pip", "install", "-q", package], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            return None, (error.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"])[-1]
        ready.touch()
    return python, ""


def ask(part: str, folder: Path) -> dict[str, Any]:
    """What a peer says of the files of a folder; or, under `reason`, why it says nothing."""
    python, reason = ensure()
    if python is None:
        return {"reason": f"could not be installed: {reason}"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(python), str(Path(__file__)), part, str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
    return dict(json.loads(lines[-1])) if lines else {"reason": said[-1][:200]}


def hitters(folder: Path) -> dict[str, Any]:
    """Events a CPU second of River's heavy hitters, on one attribute."""
    from river import sketch

    values = json.loads((folder / "values.json").read_text())
    counter = sketch.HeavyHitters()  # support 0.001, epsilon 0.005
    began = time.process_time()
    for value in values:
        counter.update(value)
    return {"rate": len(values) / (time.process_time() - began)}


def river(folder: Path) -> dict[str, Any]:
    """After how many rows each of River's detectors sees each stream's metric drift, until the first time that it does
    so after the drift began; None of them takes more than one column."""
    from river import drift

    makers = {
        "ADWIN": lambda: drift.ADWIN(delta=0.001),
        "Page-Hinkley": drift.PageHinkley,
        "KSWIN": lambda: drift.KSWIN(alpha=0.001, seed=0),
    }
    return {
        "seen": {name: [_alarms(make(), *each, name) for each in _streams(folder)] for name, make in makers.items()}
    }


def _streams(folder: Path) -> list[tuple[Any, int]]:
    import numpy as np

    files = [np.load(file) for file in sorted(folder.glob("stream-*.npz"))]
    return [({name: file[name] for name in file.files if name != "begins"}, int(file["begins"])) for file in files]


def _alarms(detector: Any, stream: Any, begins: int, name: str) -> list[int]:
    # KSWIN takes over a millisecond a row: it is shown the thousand rows before the drift, and three thousand after.
    first, last = (begins - 1_000, begins + 3_000) if name == "KSWIN" else (0, len(stream["m"]))
    seen = []
    for number, value in enumerate(stream["m"][first:last].tolist(), start=first + 1):
        detector.update(value)
        if detector.drift_detected:
            seen.append(number)
            if number > begins:
                break
    return seen


def evidently(folder: Path) -> dict[str, Any]:
    """After how many rows of each stream Evidently's preset has a column that drifted, as it comes: asked of the last
    window without drift, and of all rows since the drift began after 5, 10, 20 and 40 thousand of them."""
    import numpy as np
    import pandas as pd
    from evidently import Report
    from evidently.presets import DataDriftPreset

    reference = pd.DataFrame(dict(np.load(folder / "reference.npz").items()))
    found = []
    for stream, begins in _streams(folder):
        table, seen = pd.DataFrame(stream), []
        windows = [(begins - WINDOW_ROWS, begins)] + [(begins, begins + WINDOW_ROWS * size) for size in (1, 2, 4, 8)]
        for start, end in windows:
            said = Report([DataDriftPreset()]).run(table[start:end], reference).dict()
            (count,) = [each for each in said["metrics"] if each["metric_name"].startswith("DriftedColumnsCount")]
            if count["value"]["count"]:
                seen.append(end)
                if end > begins:
                    break
        found.append(seen)
    return {"seen": {"Evidently": found}}


if __name__ == "__main__":
    print(json.dumps({"hitters": hitters, "river": river, "evidently": evidently}[sys.argv[1]](Path(sys.argv[2]))))
