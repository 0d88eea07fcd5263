"""A run as DAWNBench takes it: a JSON description, and a TSV of every evaluation by the clock that leaves them out."""

import datetime
import json
from collections.abc import Mapping
from typing import Any

from dovetail.metrics.race.contestants import RaceRun

FIELDS = ("author", "authorEmail", "framework", "codeURL", "model", "hardware")
"""What a description holds beside what the run knows; empty where nobody says it."""


def dawnbench_tsv(run: RaceRun, *, metric: str) -> str:
    """A line for each evaluation until the target was met: epochs (evaluations, where nobody knows how many steps an
    epoch has), hours, and the metric in percent where it is an accuracy.

    >>> from dovetail.metrics.race.run_clock import ClockReading
    >>> from dovetail.vocabulary import Program, Stop, Task
    >>> reading = ClockReading(step=20, value=0.94, at_seconds=0.0, seconds={"train": 36.0, "evaluate": 9.0})
    >>> task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=99))
    >>> run = RaceRun(task=task, status="finished", readings=(reading,), steps_per_epoch=10)
    >>> [line.split() for line in dawnbench_tsv(run, metric="accuracy").splitlines()]
    [['epoch', 'hours', 'top1Accuracy'], ['2', '0.01', '94']]
    """
    is_accuracy = "acc" in metric.lower()
    lines = ["epoch\thours\t" + ("top1Accuracy" if is_accuracy else metric)]
    for number, reading in enumerate(run.readings, start=1):
        epoch = reading.step / run.steps_per_epoch if run.steps_per_epoch else number
        value = 100 * reading.value if is_accuracy else reading.value
        lines.append(f"{epoch:.10g}\t{reading.seconds_by('dawnbench') / 3600:.10g}\t{value:.10g}")
        if reading is run.last:
            break
    return "\n".join(lines) + "\n"


def dawnbench_json(run: RaceRun, *, contestant: str, log: str, said: Mapping[str, Any]) -> str:
    """The description of a run whose TSV is called `log`; `said` are fields with values, in the place of what is empty.

    >>> from dovetail.vocabulary import Program, Stop, Task
    >>> run = RaceRun(task=Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9)), status="finished")
    >>> json.loads(dawnbench_json(run, contestant="a", log="a.tsv", said={}))["version"]
    'v1.0'
    """
    misc = {"seed": run.seed, "interruptions": run.interruptions, "parameters": dict(run.task.parameters)}
    moment = datetime.datetime.fromtimestamp(run.started_seconds, tz=datetime.UTC)
    found = {
        "version": "v1.0",
        **dict.fromkeys(FIELDS, ""),
        "framework": "PyTorch, Dovetail",
        "model": contestant,
        "hardware": ", ".join(run.ways),
        "costPerHour": _price_per_hour(run),
        "timestamp": moment.date().isoformat(),
        "logFilename": log,
        "misc": misc,
    }
    return json.dumps({**found, **said}, indent=2, default=str) + "\n"


def _price_per_hour(run: RaceRun) -> float | None:
    """What an hour of all its devices costs, from what it spent in the time that it held them."""
    if run.spend is None or run.last is None:
        return None
    held = max(run.last.device_seconds.values(), default=0.0)
    return round(run.spend / held * 3600, 6) if held else None
