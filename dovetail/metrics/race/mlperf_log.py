"""A run as MLPerf's log lines, as its compliance checker (`mlperf_logging`, rules 6.0.0) reads them.

Written from the events' own times, so that the log shows the run as it went. What nobody knows is null.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.metrics.race.contestants import RaceRun

BENCHMARKS = (
    "deepseekv3_671b", "dlrm_dcnv2", "flux1", "gpt_oss_20b", "llama2_70b_lora", "llama31_405b", "llama31_8b",
)  # fmt: skip
"""The benchmarks that the rules of 6.0.0 know; a log must name one of them."""
DEFAULTS: Mapping[str, Any] = {
    "submission_benchmark": "dlrm_dcnv2",
    "submission_org": "dovetail",
    "submission_division": "open",
    "submission_status": "research",
    "train_samples": None,
    "eval_samples": None,
}
"""What a log says where nobody says otherwise. In the open division the rules of this benchmark ask for an accuracy of
at most 1 and no hyperparameters."""


def mlperf_lines(run: RaceRun, *, contestant: str, said: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one run's log; `said` are keys with values, in the place of the defaults or besides.

    >>> from dovetail.vocabulary import Program, Stop, Task
    >>> run = RaceRun(task=Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9)), status="finished")
    >>> next(iter(mlperf_lines(run, contestant="a", said={})))  # doctest: +ELLIPSIS
    ':::MLLOG {"namespace": "", "time_ms": 0, "event_type": "POINT_IN_TIME", "key": "submission_benchmark", ...'
    """
    start, readings = run.started_seconds, run.readings
    first_step = start + (readings[0].seconds.get("start", 0.0) if readings else 0.0)
    values = {
        **DEFAULTS,
        "submission_platform": ", ".join(run.ways) or "unknown",
        "seed": run.seed,
        "contestant": contestant,
        **said,
    }
    for key in [key for key in values if key.startswith("submission_")]:
        yield _line(start, key, values.pop(key))
    yield _line(start, "cache_clear", False)  # nobody has cleared the machine's caches
    yield _line(start, "init_start", None, kind="INTERVAL_START")
    for key, value in values.items():
        yield _line(start, key, value)
    yield _line(first_step, "init_stop", None, kind="INTERVAL_END")
    yield _line(first_step, "run_start", None, kind="INTERVAL_START")
    yield from _evaluations(run, first_step, said.get("global_batch_size"))
    end = run.last.at_seconds if run.last is not None else first_step
    status = "success" if run.crossing is not None else "aborted"
    yield _line(end, "run_stop", None, kind="INTERVAL_END", status=status)


def _evaluations(run: RaceRun, since: float, batch_size: float | None) -> Iterator[str]:
    """What was trained up to each evaluation, and the evaluation, until the target was met."""
    for number, reading in enumerate(run.readings, start=1):
        # Where nobody knows how many steps an epoch has, or examples a batch, evaluations and steps are counted.
        epoch = reading.step / run.steps_per_epoch if run.steps_per_epoch else number
        where: dict[str, Any] = {"epoch_num": epoch, "samples_count": int(reading.step * (batch_size or 1))}
        evaluated = reading.at_seconds - reading.evaluation_seconds
        yield _line(since, "epoch_start", None, kind="INTERVAL_START", **where)
        yield _line(evaluated, "epoch_stop", None, kind="INTERVAL_END", **where)
        yield _line(evaluated, "eval_start", None, kind="INTERVAL_START", **where)
        yield _line(reading.at_seconds, "eval_accuracy", reading.value, **where)
        yield _line(reading.at_seconds, "eval_stop", None, kind="INTERVAL_END", **where)
        since = reading.at_seconds
        if reading is run.last:
            return


def _line(at_seconds: float, key: str, value: Any, *, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    found = {
        "namespace": "",
        "time_ms": round(at_seconds * 1000),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "dovetail", "lineno": 0, **metadata},
    }
    return f":::MLLOG {json.dumps(found)}"
