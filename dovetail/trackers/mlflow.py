"""MLflow: an experiment for each workload, a run for it and, nested below, one for each task.

A folder holds MLflow's database and its artifacts; one that MLflow's older file store has written to is written to in
that way. MLflow keeps each metric by (run, key, step, timestamp, value); after a kill, or an answer that never came,
what it holds of a metric is asked for, and sending goes on behind that.
"""

import contextlib
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dovetail.store import Point, folder_beside
from dovetail.trackers.base import OpenedRun, RunFacts, Tracker, check_folder, flatten_parameters
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.user_text import shorten

_STATUSES = {"pending": "SCHEDULED", "running": "RUNNING", "paused": "SCHEDULED", "resting": "SCHEDULED"}
_STATUSES |= {
    "finished": "FINISHED",
    "halved": "FINISHED",
    "pruned": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
}
_KEY_TAG = "dovetail.run"
# What MLflow takes in one request, in a name, in a parameter and in a tag.
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST_NAME, _LONGEST_PARAMETER, _LONGEST_TAG = 1000, 100, 250, 6000, 5000
# The tracker is called again in any case, and asks first what is held; MLflow's own retries would send twice.
_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_ENVIRONMENT |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
_DELETED = "deleted"


class MlflowTracker(Tracker):
    """`mlflow:FOLDER`, or `mlflow:` and any tracking URI: `sqlite:///runs.db`, `http://host:5000`."""

    distributions = ("mlflow", "mlflow-skinny")
    least_version = "3.1"
    extra = "mlflow"

    @classmethod
    def resolve(cls, place: str) -> str:
        """A tracking URI with full paths. A folder's is that of the database in it, unless it is a file store's."""
        place = place or os.environ.get("MLFLOW_TRACKING_URI", "") or "./mlruns"
        if place.startswith("sqlite:"):
            path = place.removeprefix("sqlite:///")
            if path in ("", place) or path.startswith(":"):
                raise DovetailError(f"a tracking URI of SQLite must be sqlite:///FILE, got {place!r}.")
            return f"sqlite:///{Path(path).expanduser().absolute()}"
        if "://" in place and not place.startswith("file:"):
            return place
        folder = Path(unquote(urlsplit(place).path) if place.startswith("file:") else place).expanduser().absolute()
        return folder.as_uri() if _is_file_store(folder) else f"sqlite:///{folder / 'mlflow.db'}"

    @classmethod
    def check(cls, place: str) -> None:
        """Refuse a folder that cannot be written; whether a server answers is only known when it is asked."""
        path = local_path(place)
        if path is not None:
            check_folder(path if place.startswith("file:") else path.parent)
            if path.is_file() and not os.access(path, os.W_OK):
                raise DovetailError(f"MLflow's database must be one that this user can write; {path} is not.")

    def __init__(self, place: str) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if place.startswith("file:"):
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        from mlflow.tracking import MlflowClient

        self._place = place
        path = local_path(place)
        if place.startswith("sqlite:") and path is not None and not path.exists():
            _create_database(path)
        self._client: Any = MlflowClient(tracking_uri=place)
        self._experiments: dict[str, str] = {}

    def open(self, run: RunFacts, state: str, *, metrics: Iterable[str]) -> OpenedRun:
        """Find the run by its key, or make it; tell its parameters, and ask what it holds of these metrics."""
        if state == _DELETED:
            return OpenedRun(state=state)
        found = self._client.get_run(state) if state else self._find(run)
        if found is None:
            found = self._create(run)
        if found.info.lifecycle_stage == _DELETED:  # by a user, who wants no more of it
            return OpenedRun(state=_DELETED)
        run_id = found.info.run_id
        self._tell_parameters(run_id, run, known=found.data.params)
        keys = {name: metric_key(name) for name in metrics}
        held = {name: self._last_step(run_id, key) if key in found.data.metrics else -1 for name, key in keys.items()}
        return OpenedRun(state=run_id, held=held)

    def send(self, run: RunFacts, state: str, points: Sequence[Point], *, facts: bool) -> str:
        """Log points a thousand at a time, then tags, files and status."""
        if state == _DELETED:
            return state
        from mlflow.entities import Metric

        logged = [Metric(metric_key(p.name), p.value, _milliseconds(p.at_seconds), p.step) for p in points]
        for first in range(0, len(logged), _MOST_METRICS):
            self._client.log_batch(state, metrics=logged[first : first + _MOST_METRICS])
        if facts:
            self._tell(state, run)
        return state

    def send_model(self, run: RunFacts, state: str, folder: Path) -> None:
        """Log the model's files as artifacts below `model`."""
        if state != _DELETED:
            self._client.log_artifacts(state, str(folder), artifact_path="model")

    def _find(self, run: RunFacts) -> Any:
        from mlflow.entities import ViewType

        query = f"tags.`{_KEY_TAG}` = '{run.key}'"
        experiment = self._experiment(run.workload)
        found = self._client.search_runs([experiment], query, run_view_type=ViewType.ALL, max_results=1)
        return found[0] if found else None

    def _create(self, run: RunFacts) -> Any:
        tags = {_KEY_TAG: run.key}
        if run.parent:
            parent = self._find(_parent_of(run))
            tags |= {"mlflow.parentRunId": parent.info.run_id} if parent is not None else {}
        at = _milliseconds(run.started_seconds) if run.started_seconds else None
        return self._client.create_run(
            self._experiment(run.workload), start_time=at, tags=tags, run_name=run.name[:_LONGEST_NAME]
        )

    def _experiment(self, workload: str) -> str:
        """The experiment of a workload's name; that of a folder has its artifacts in the folder."""
        known = self._experiments.get(workload)
        if known is None:
            found = self._client.get_experiment_by_name(workload)
            if found is not None and found.lifecycle_stage == _DELETED:
                raise DovetailError(f"MLflow's experiment {workload!r} must not be deleted; it is. Restore it.")
            known = self._experiments[workload] = found.experiment_id if found else self._create_experiment(workload)
        return known

    def _create_experiment(self, workload: str) -> str:
        path = local_path(self._place)
        is_own = self._place.startswith("sqlite:") and path is not None and path.name == "mlflow.db"
        where = (path.parent / "artifacts").as_uri() if is_own and path is not None else None
        return str(self._client.create_experiment(workload, artifact_location=where))

    def _tell_parameters(self, run_id: str, run: RunFacts, *, known: Iterable[str]) -> None:
        """Log the parameters that are not there yet: MLflow takes each once."""
        from mlflow.entities import Param

        flat = flatten_parameters(run.parameters).items()
        given = {metric_key(name): shorten(str(value), most=_LONGEST_PARAMETER) for name, value in flat}
        missing = [Param(name, value) for name, value in given.items() if name not in known]
        for first in range(0, len(missing), _MOST_PARAMETERS):
            self._client.log_batch(run_id, params=missing[first : first + _MOST_PARAMETERS])

    def _tell(self, run_id: str, run: RunFacts) -> None:
        from mlflow.entities import RunTag

        tags = [RunTag(name, shorten(text, most=_LONGEST_TAG)) for name, text in run.tags.items()]
        self._client.log_batch(run_id, tags=tags)
        for name, text in run.texts.items():
            self._client.log_text(run_id, text, name)
        status = _STATUSES[run.status]
        if run.has_ended:
            at = _milliseconds(run.ended_seconds) if run.ended_seconds else None
            self._client.set_terminated(run_id, status=status, end_time=at)
        else:
            self._client.update_run(run_id, status=status)

    def _last_step(self, run_id: str, key: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(run_id, key)), default=-1)


def metric_key(name: str) -> str:
    """A name as MLflow takes it.

    >>> metric_key("train/loss"), metric_key("top-5 [%]"), metric_key("../loss")
    ('train/loss', 'top-5 ___', '_.._loss')
    """
    found = re.sub(r"[^\w./ :-]", "_", name, flags=re.ASCII)[: _LONGEST_NAME - 1]
    # MLflow takes none that as a file's name would be another one.
    is_itself = posixpath.normpath(found) == found and not found.startswith(("/", ".."))
    return found if is_itself and found != "." else f"_{found.replace('/', '_')}"


def local_path(place: str) -> Path | None:
    """Where a tracking URI's files are, if they are on this machine.

    >>> local_path("sqlite:////data/mlruns/mlflow.db"), local_path("http://host:5000")
    (PosixPath('/data/mlruns/mlflow.db'), None)
    """
    if place.startswith("sqlite:///"):
        return Path(place.removeprefix("sqlite:///"))
    return Path(unquote(urlsplit(place).path)) if place.startswith("file:") else None


def _create_database(path: Path) -> None:
    """Have MLflow make its database beside, and give it its name once it is whole: that takes a hundred migrations, and
    one that is killed in between leaves what MLflow never opens again."""
    from mlflow.tracking import MlflowClient

    with folder_beside(path) as folder:
        made = folder / "mlflow.db"
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another process has made one meanwhile
            os.link(made, path)


def _parent_of(run: RunFacts) -> RunFacts:
    return RunFacts(key=run.parent, subject=run.parent, name=run.workload, workload=run.workload)


def _is_file_store(folder: Path) -> bool:
    """Whether MLflow's file store has written to a folder, and no database is in it."""
    return not (folder / "mlflow.db").exists() and any(folder.glob("*/meta.yaml"))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
