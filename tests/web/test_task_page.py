"""One task: what happened to it, how it could run, what it printed and is made of."""

import json
from pathlib import Path

import pytest

from dovetail.store import Store
from dovetail.vocabulary import Cluster, DovetailError, Kind, Profile, Program, Stop, Task, read_event
from dovetail.vocabulary.events import DevicesReleased
from dovetail.web.plain_data import dump
from dovetail.web.reading import read_whole
from dovetail.web.task_page import cluster_of, task_of, waits_for
from tests.web.synthetic import LOG, START, fill_sweep, make_option, make_task


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "store", write=True) as opened:
        yield opened


def page(store: Store, identity: str, **more):
    return json.loads(dump(task_of(read_whole(store), store, identity, now=START + 700, **more)))


def test_everything_on_record_is_told(store: Store):
    tasks = fill_sweep(store)
    found = page(store, tasks[3].identity)
    assert found["stop"] == "accuracy ≥ 0.58, at most 500 steps"
    assert found["parameters"]["api_key"] == "***"
    assert [event[1] for event in found["events"]] == ["fingerprinted", "started", "failed"]
    assert found["events"][-1][4] == LOG
    lost = page(store, tasks[6].identity)
    assert [(each["step"], each["kept"]) for each in lost["checkpoints"]] == [(180, False)]
    with pytest.raises(DovetailError, match="there is no 'nobody'"):
        page(store, "nobody")


def test_what_else_it_could_run_as_is_told_with_what_that_takes(store: Store):
    task = make_task("a", steps=100)
    cluster = Cluster.uniform(Kind(name="h100", processor="cuda", memory_bytes=80 << 30), devices_per_node=2, cores=8)
    measured = [
        Profile(family="f", kind="h100", count=1, step_seconds=0.5, peak_bytes=1 << 30),
        Profile(family="f", kind="h100", count=2, step_seconds=0.3, peak_bytes=1 << 30, technique="replicate"),
        Profile(family="f", kind="h100", count=2, step_seconds=0.4, peak_bytes=99 << 30, technique="shard"),
    ]
    option = make_option(step_seconds=0.5)
    started = {
        "placement": "p", "devices": ["n0:0"], "step": 0, "until": 100, "predicted_seconds": 50.0,
        "option": {"families": ["f"], "technique": "resident", "kind": "h100", "count": 1, "step_seconds": [0.5]},
    }  # fmt: skip
    events = [
        read_event("fingerprinted", task=task.identity, at_seconds=1.0, data={"family": "f"}),
        read_event("started", task=task.identity, attempt=1, at_seconds=2.0, data=started),
    ]
    store.add(tasks=[("w", task)], events=events, profiles=measured, hardware=[("cluster", cluster)])
    found = page(store, task.identity)
    first = found["options"][0]
    assert (first["technique"], first["count"], first["chosen"]) == (option.technique, 1, True)
    assert first["seconds"] == pytest.approx(50.0, abs=5.0)
    others = {each["technique"]: each for each in found["options"][1:]}
    assert others["replicate"]["device_seconds"] == pytest.approx(2 * others["replicate"]["seconds"])
    assert any(each["technique"] == "shard" and each["needed"] > each["free"] for each in found["rejected"])


def test_its_log_and_its_code_are_shown_to_whom_they_may_be(store: Store, tmp_path: Path):
    file = tmp_path / "sweep.py"
    file.write_text("import os\n\n\ndef net(width=3):\n    # hunter22\n    return width\n")
    task = Task(name="a", program=Program(reference=f"{file}:net"), parameters={"pwd": "hunter22"}, stop=Stop(steps=9))
    started = {"placement": "12.5-1", "devices": ["n0:0"], "step": 0, "until": 9, "predicted_seconds": 1.0}
    store.add(
        tasks=[("w", task)],
        events=[read_event("started", task=task.identity, attempt=1, at_seconds=2.0, data=started)],
    )
    (tmp_path / "store" / "logs").mkdir(exist_ok=True)
    (tmp_path / "store" / "logs" / "order-12.5-1.log").write_bytes(b"logged in with hunter22\n\xff\n")
    found = page(store, task.identity)
    assert found["source"] == "def net(width=3):\n    # ***\n    return width"
    assert found["log"] == "logged in with ***\n\ufffd"
    assert page(store, task.identity, source=False)["source"] == ""


def test_why_it_waits(store: Store):
    tasks = fill_sweep(store)
    store.add(
        events=[read_event("fingerprinted", task=tasks[11].identity, at_seconds=START, data={"family": "family11"})]
    )
    reading = read_whole(store)
    said = waits_for(reading, tasks[11].identity, now=START + 700)
    assert said == "1 of 4 devices are taken by charlm-w1024-lr0.001."
    assert waits_for(reading, tasks[10].identity, now=START) == ""
    store.add(events=[read_event("paused", task=tasks[11].identity, at_seconds=START)])
    assert "paused by a user" in waits_for(read_whole(store), tasks[11].identity, now=START)
    store.add(tasks=[("w", make_task("new"))])
    assert "measured first" in waits_for(read_whole(store), make_task("new").identity, now=START)


def test_the_cluster_is_told(store: Store):
    fill_sweep(store)
    found = cluster_of(read_whole(store))
    assert [(kind["name"], kind["count"]) for kind in found["kinds"]] == [("h100", 4)]
    assert found["loads"] == []
    order = {"placement": "p", "devices": ("n0:0", "n0:1"), "duration_seconds": 40.0, "held_bytes": 7 << 30}
    ends = [DevicesReleased(at_seconds=START + 50, busy_seconds=busy, **order) for busy in (20.0, 99.0, None)]
    store.add(events=ends)
    start, end = START + 10, START + 50
    expected = [[["n0:0", "n0:1"], start, end, share, 7 << 30] for share in (0.25, 1.0, None)]
    assert cluster_of(read_whole(store))["loads"] == expected
