"""What MLflow's own client reads back is what the store holds: from its database, and from its older files."""

import functools
import tempfile
from pathlib import Path

import pytest

from dovetail.testing.trackers import TrackerConformance, add_points, begin_attempt, finish_task
from dovetail.trackers import parse_tracker
from dovetail.trackers.mlflow import MlflowTracker, metric_key
from dovetail.vocabulary import DovetailError

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


@functools.cache
def empty_database() -> bytes:
    """A database as MLflow makes it, which takes it two seconds."""
    with tempfile.TemporaryDirectory() as folder:
        MlflowTracker(MlflowTracker.resolve(folder))._client.search_experiments()
        return (Path(folder) / "mlflow.db").read_bytes()


class MlflowRead(TrackerConformance):
    def address(self, folder):
        return f"mlflow:{folder}/mlruns"

    def client(self, folder):
        return MlflowTracker(parse_tracker(self.address(folder)).place)._client

    def runs(self, folder):
        """The newest run of each name."""
        client = self.client(folder)
        experiment = client.get_experiment_by_name("sweep").experiment_id
        runs = client.search_runs([experiment], order_by=["start_time"])
        return client, {run.info.run_name: run for run in runs}

    def read(self, folder):
        client, runs = self.runs(folder)
        return {
            name: {
                key: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            }
            for name, run in runs.items()
        }

    def statuses(self, folder):
        return {name: run.info.status for name, run in self.runs(folder)[1].items()}


class TestDatabase(MlflowRead):
    @pytest.fixture(autouse=True)
    def database(self, tmp_path):
        (tmp_path / "mlruns").mkdir()
        (tmp_path / "mlruns" / "mlflow.db").write_bytes(empty_database())

    def test_parameters_tags_and_nesting(self, home, tmp_path):
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 3))
        finish_task(home, "a", step=2)
        self.send(home, tmp_path)
        _, runs = self.runs(tmp_path)
        assert runs["a"].data.params == {"width": "8"}
        assert runs["b"].data.params == {"width": "8", "pwd": "***"}
        assert runs["a"].data.tags["dovetail.devices"] == "n0:0"
        assert runs["a"].data.tags["mlflow.parentRunId"] == runs["sweep"].info.run_id
        assert runs["a"].info.status == "FINISHED"
        assert runs["b"].info.status == "SCHEDULED"

    def test_a_run_that_a_user_deleted_stays_deleted(self, home, tmp_path):
        begin_attempt(home, "a")
        add_points(home, "a", range(1, 5))
        self.send(home, tmp_path)
        client, runs = self.runs(tmp_path)
        client.delete_run(runs["a"].info.run_id)
        add_points(home, "a", range(5, 9))
        finish_task(home, "a", step=8)
        self.send(home, tmp_path)
        assert "a" not in self.runs(tmp_path)[1]


@pytest.mark.slow
class TestFiles(MlflowRead):
    @pytest.fixture(autouse=True)
    def files(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.store.tracking.file_store import FileStore

        FileStore(str(tmp_path / "mlruns"))
        assert parse_tracker(self.address(tmp_path)).place.startswith("file:")


def test_places_are_tracking_uris(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert MlflowTracker.resolve("./mlruns") == f"sqlite:///{tmp_path}/mlruns/mlflow.db" == MlflowTracker.resolve("")
    assert MlflowTracker.resolve("sqlite:///my.db") == f"sqlite:///{tmp_path}/my.db"
    assert MlflowTracker.resolve("http://host:5000") == "http://host:5000"
    with pytest.raises(DovetailError, match=r"must be sqlite:///FILE, got 'sqlite:my.db'"):
        MlflowTracker.resolve("sqlite:my.db")


@pytest.mark.parametrize("name", ["train/loss", "a b", "top@5", "../x", "/x", "a//b", ".", "ü", "x" * 300])
def test_names_are_as_mlflow_takes_them(name):
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(metric_key(name))
