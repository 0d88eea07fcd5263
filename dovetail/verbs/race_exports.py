"""A race's runs as files of others: MLPerf's logs, DAWNBench's JSON and TSV."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.metrics.race.contestants import Contestant
from dovetail.metrics.race.dawnbench import dawnbench_json, dawnbench_tsv
from dovetail.metrics.race.mlperf_log import BENCHMARKS, mlperf_lines
from dovetail.metrics.race.outcome import RaceResult
from dovetail.store import write_atomically
from dovetail.verbs.choices import check_name
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.redact import Redactor

_LONGEST_NAME = 100
Files = dict[str, str]


def check_export(export: str, said: Mapping[str, Any]) -> tuple[str, Path]:
    """The kind and the directory of an export such as `mlperf:logs`; refused before anything is trained where it could
    not be written.

    >>> check_export("mlperv:logs", {})
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: an export must be one of dawnbench, mlperf, got 'mlperv'; \
did you mean 'mlperf'?
    """
    kind, colon, directory = export.partition(":")
    check_name("an export", kind, EXPORTS)
    if not (colon and directory):
        raise DovetailError(f"an export must say where to write, as in {kind}:logs, got {export!r}.")
    benchmark = said.get("submission_benchmark", BENCHMARKS[0])
    if kind == "mlperf":
        check_name("submission_benchmark", str(benchmark), BENCHMARKS)
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(f"{directory} cannot be written")
    except OSError as error:
        raise DovetailError(f"an export's directory must be writable; found: {error}. Choose another.") from error
    return kind, Path(directory)


def export_race(race: RaceResult, export: str, *, said: Mapping[str, Any]) -> list[Path]:
    """Write a race's runs as `mlperf:DIR` or `dawnbench:DIR`; gives the files. `said` are keys with values that the run
    cannot know, such as who submits it."""
    kind, directory = check_export(export, said)
    redact = Redactor((run.task.parameters for each in race.contestants for run in each.runs), variables=os.environ)
    written = []
    for folder, contestant in _folders(race, redact).items():
        for name, text in EXPORTS[kind](race, contestant, said).items():
            path = directory / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, redact(text).encode())
            written.append(path)
    return written


def _folders(race: RaceResult, redact: Redactor) -> dict[str, Contestant]:
    """A folder for each contestant, called after it with what no file system minds."""
    found: dict[str, Contestant] = {}
    for number, each in enumerate(race.contestants):
        name = re.sub(r"[^\w.,=+@-]", "_", redact(each.name))[:_LONGEST_NAME]
        found[name if name not in found else f"{name}-{number}"] = each
    return found


def _mlperf(race: RaceResult, contestant: Contestant, said: Mapping[str, Any]) -> Files:
    """One log a seed, under the names that MLPerf's own tools look for."""
    return {
        f"result_{number}.txt": "\n".join(mlperf_lines(run, contestant=contestant.name, said=said)) + "\n"
        for number, run in enumerate(contestant.runs)
    }


def _dawnbench(race: RaceResult, contestant: Contestant, said: Mapping[str, Any]) -> Files:
    found: Files = {}
    for run in contestant.runs:
        log = f"seed-{run.seed}.tsv"
        found[log] = dawnbench_tsv(run, metric=race.stop.metric or "")
        found[f"seed-{run.seed}.json"] = dawnbench_json(run, contestant=contestant.name, log=log, said=said)
    return found


EXPORTS: dict[str, Callable[[RaceResult, Contestant, Mapping[str, Any]], Files]] = {
    "mlperf": _mlperf,
    "dawnbench": _dawnbench,
}
