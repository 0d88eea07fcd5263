"""The lines are what MLPerf's own checker takes; the real one is asked."""

import json
import subprocess
import sys

import pytest

from dovetail.metrics.race.mlperf_log import mlperf_lines
from tests.metrics.race.planted import judge, make_task, straight_run


def run_of(*, arrives=True):
    task = make_task("net", 3)
    return judge(straight_run(task, steps=100, step_seconds=0.1, arrives=arrives, begins=1e9), [task])["net"].runs[0]


def check(path):
    words = ["--usage", "training", "--ruleset", "6.0.0", "--werror", "--log_output", str(path.with_suffix(".out"))]
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", *words, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.process
def test_the_compliance_checker_says_success(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(mlperf_lines(run_of(), contestant="net", said={})) + "\n")
    code, said = check(path)
    assert code == 0, said
    assert "SUCCESS" in said


@pytest.mark.process
def test_and_it_can_say_otherwise(tmp_path):
    lines = [line for line in mlperf_lines(run_of(), contestant="net", said={}) if '"run_stop"' not in line]
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(lines) + "\n")
    assert check(path)[0] == 1


def values_of(run, **said):
    found = [json.loads(line.removeprefix(":::MLLOG ")) for line in mlperf_lines(run, contestant="net", said=said)]
    return {line["key"]: line for line in found}, found


def test_what_is_said_takes_the_place_of_defaults_or_comes_besides():
    by_key, _ = values_of(run_of(), submission_org="us", global_batch_size=64)
    assert by_key["submission_org"]["value"] == "us"
    assert by_key["global_batch_size"]["value"] == 64
    assert by_key["eval_accuracy"]["metadata"]["samples_count"] == 6400
    assert by_key["seed"]["value"] == 3


def test_the_log_is_the_run_and_ends_where_it_arrived():
    by_key, lines = values_of(run_of())
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    assert by_key["run_stop"]["time_ms"] - by_key["run_start"]["time_ms"] == 12_000
    assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
    assert values_of(run_of(arrives=False))[0]["run_stop"]["metadata"]["status"] == "aborted"
