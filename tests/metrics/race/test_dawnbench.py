import json

from dovetail.metrics.race.dawnbench import dawnbench_json, dawnbench_tsv
from tests.metrics.race.planted import DEVICE, judge, make_task, straight_run


def run_of():
    task = make_task("net", 3)
    return judge(straight_run(task, steps=100, step_seconds=3.6), [task], prices={DEVICE: 2.5})["net"].runs[0]


def test_hours_leave_evaluations_out():
    head, *lines = dawnbench_tsv(run_of(), metric="accuracy").splitlines()
    assert head == "epoch\thours\ttop1Accuracy"
    assert len(lines) == 10
    assert lines[-1].split("\t") == ["10", "0.1", "90"]


def test_another_metric_has_its_own_name():
    assert dawnbench_tsv(run_of(), metric="f1").startswith("epoch\thours\tf1\n")


def test_the_description_has_what_dawnbench_asks_for():
    found = json.loads(dawnbench_json(run_of(), contestant="net", log="a.tsv", said={"author": "us"}))
    asked = "version author authorEmail framework codeURL model hardware costPerHour timestamp logFilename misc"
    assert list(found) == asked.split()
    assert found["author"] == "us"
    assert found["costPerHour"] == 2.5
