import json
import os

import pytest

from dovetail.verbs.race_exports import check_export, export_race
from dovetail.vocabulary import DovetailError
from tests.metrics.race.planted import judge, make_task, straight_run


def race():
    tasks = [make_task("net", seed) for seed in range(2)]
    return judge([event for task in tasks for event in straight_run(task, steps=100, step_seconds=0.1)], tasks)


def test_one_log_a_seed(tmp_path):
    written = export_race(race(), f"mlperf:{tmp_path}", said={})
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["net/result_0.txt", "net/result_1.txt"]
    assert all(line.startswith(":::MLLOG {") for line in written[0].read_text().splitlines())


def test_dawnbench_has_a_description_and_a_table_a_seed(tmp_path):
    written = export_race(race(), f"dawnbench:{tmp_path}", said={"author": "us"})
    assert sorted(path.name for path in written) == ["seed-0.json", "seed-0.tsv", "seed-1.json", "seed-1.tsv"]
    assert json.loads((tmp_path / "net" / "seed-0.json").read_text())["author"] == "us"


@pytest.mark.parametrize(
    ("export", "said", "why"),
    [
        ("mlperf", {}, "an export must say where to write, as in mlperf:logs"),
        ("mlflow:x", {}, "an export must be one of dawnbench, mlperf"),
        ("mlperf:{folder}", {"submission_benchmark": "resnet"}, "submission_benchmark must be one of deepseekv3_671b"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_trained(tmp_path, export, said, why):
    with pytest.raises(DovetailError, match=why):
        check_export(export.format(folder=tmp_path), said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DovetailError, match="an export's directory must be writable"):
        check_export(f"mlperf:{tmp_path}/logs", {})


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(DovetailError, match="an export's directory must be writable"):
        check_export(f"mlperf:{tmp_path}/logs", {})
