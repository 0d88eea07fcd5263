"""`dovetail route`: what cannot be started says why, and a report shows how well routing does."""

import json

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from dovetail.cli.app import app
from tests.serve.routing.outcomes import rows_of

MODELS = '[models.small]\nurl = "http://127.0.0.1:9/v1"\nprice_in = 1.0\nprice_out = 1.0\n'


def run(*words):
    return CliRunner().invoke(app, ["route", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models.toml", "--budget", "0.001/1k"], "must pay for the cheapest model"),
        (["models.toml", "--budget", "lots"], "as in 2.00/1k, got 'lots'"),
        (["models.toml", "--host", "0.0.0.0"], "must have a token"),
        (["models.toml", "--outcomes", "none.csv"], "none.csv is not there"),
        (["models.toml", "--outcomes", "outcomes.parquet"], "at least one of the models small; it has those of tiny"),
        (["models.toml", "--record", "models.toml"], "models.toml is a file"),
        (["none.toml"], "none.toml cannot be read"),
        ([], "which models there are"),
        (["--report"], "--outcomes TABLE"),
        (["--report", "--outcomes", "outcomes.parquet"], "at least 2 models and 63 queries"),
    ],
)
def test_what_cannot_be_started_says_why(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.toml").write_text(MODELS)
    rows = [row | {"model": "tiny"} for row in rows_of(60) if row["model"] == "small"]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "outcomes.parquet")
    found = run(*words)
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


def test_a_report_names_every_way(tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(rows_of(80, noise=0.1)), tmp_path / "outcomes.parquet")
    found = run("--report", "--outcomes", tmp_path / "outcomes.parquet")
    assert found.exit_code == 0
    assert "80 queries, five folds" in found.output
    assert all(way in found.output for way in ("router", "random", "length", "oracle", "large alone"))
    data = json.loads(run("--report", "--outcomes", tmp_path / "outcomes.parquet", "--json").output)
    assert data["scores"]["random"]["apgr"] == pytest.approx(0.5)
