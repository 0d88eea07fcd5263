"""The picture of a pipelined task, planned above measured, from what a controller leaves in its store."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from dovetail.cli import plan_page
from dovetail.cli.app import app
from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.techniques import pipeline
from dovetail.store import Store
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    FamilyKey,
    Kind,
    LayerProfile,
    Placement,
    Plan,
    Profile,
    Schedule,
    Workload,
    read_event,
    to_json,
)
from dovetail.web.report import write_report
from dovetail.web.timetable_charts import read_timetables
from tests.web.synthetic import make_task

KIND = Kind(name="cpu", processor="cpu")
CLUSTER = Cluster.uniform(KIND, devices_per_node=2)
LAYERS = tuple(
    LayerProfile(name=name, operation="Linear", forward_seconds=0.01, backward_seconds=0.02, parameter_bytes=8)
    for name in "abcd"
)
PROFILE = Profile(
    family="f",
    kind="cpu",
    count=1,
    step_seconds=0.48,
    peak_bytes=1 << 20,
    layers=LAYERS,
    edges=(("a", "b"), ("b", "c"), ("c", "d")),
    accumulate=4,
)


def option(timetable="1f1b"):
    made = pipeline.predict(PROFILE, kind=KIND, fabric=Fabric.of(CLUSTER), timetable=timetable, depth=2, width=1)
    return made.option


def run_of(prediction):
    """A run that went exactly as it was foreseen, a second of the clock later."""
    return [
        [[t.action.operation, t.action.stage, t.action.microbatch, 1 + t.start, 1 + t.end] for t in rank]
        for rank in prediction.simulated.ranks
    ]


def fill(store, *, timetable="1f1b", is_measured=True, name="tower", key=None):
    task = make_task(name)
    store.add(tasks=[("sweep", task)], hardware=[("cluster", CLUSTER)], profiles=[PROFILE])
    made = option(timetable) if key is None else option(timetable).named([key])
    placement = Placement(
        tasks=(task.identity,),
        steps=(10,),
        option=made,
        devices=("n0:0", "n0:1"),
        start_seconds=0.0,
        duration_seconds=3.0,
    )
    store.add_plan(Plan(schedule=Schedule(placements=(placement,))), workload="sweep", at_seconds=1.0)
    if not is_measured:
        return task
    data = {"placement": "p", "devices": placement.devices, "step": 0, "until": 10, "predicted_seconds": 3.0}
    events = [
        read_event("started", task=task.identity, attempt=1, at_seconds=2.0, data=data | {"option": to_json(made)})
    ]
    found = pipeline.predict(PROFILE, kind=KIND, fabric=Fabric.of(CLUSTER), timetable=timetable, depth=2, width=1)
    timed = {"step": 4, "timetable": timetable, "microbatches": 4, "ranks": run_of(found)}
    events.append(read_event("timed", task=task.identity, attempt=1, at_seconds=3.0, data=timed))
    store.add(events=events)
    return task


@pytest.mark.parametrize("timetable", ["1f1b", "2bw", "stashing"])
def test_a_run_that_went_as_planned_is_drawn_as_planned(timetable):
    with Store(None, write=True) as store:
        fill(store, timetable=timetable)
        (drawn,) = read_timetables(store)
    head, planned, first, measured, second = drawn.lines(columns=80)
    assert head == f"tower: {timetable} on n0:0, n0:1"
    assert first == second
    assert planned.removeprefix("planned: ") == measured.removeprefix("measured in step 4: ")
    assert all(len(row) == 88 for row in first.splitlines())


def test_before_it_starts_there_is_what_the_plan_says():
    with Store(None, write=True) as store:
        fill(store, is_measured=False)
        (drawn,) = read_timetables(store, workload="sweep")
    assert drawn.measured is None
    assert drawn.planned is not None
    # 4 microbatches at 2 equal stages: one fifth is idle, besides what the optimizer takes.
    assert drawn.planned.bubble_share == pytest.approx(0.2, abs=0.01)


def test_of_a_task_that_goes_on_as_it_began_the_plan_is_drawn_too():
    with Store(None, write=True) as store:
        fill(store, is_measured=False, key=FamilyKey(family="f", threads=1, approximate=""))
        (drawn,) = read_timetables(store, workload="sweep")
    assert drawn.planned is not None


def test_another_attempts_record_is_not_shown_for_this_one():
    with Store(None, write=True) as store:
        task = fill(store)
        again = {"placement": "q", "devices": ["n0:0", "n0:1"], "step": 0, "until": 10, "predicted_seconds": 3.0}
        again |= {"option": to_json(option("gpipe"))}
        store.add(events=[read_event("started", task=task.identity, attempt=2, at_seconds=9.0, data=again)])
        (drawn,) = read_timetables(store)
    assert (drawn.timetable, drawn.measured) == ("gpipe", None)


def test_an_unknown_task_is_refused_by_name():
    with Store(None, write=True) as store, pytest.raises(DovetailError, match="there is no 'nobody'"):
        read_timetables(store, task="nobody")


def test_the_report_shows_both_pictures(tmp_path):
    with Store(None, write=True) as store:
        fill(store, name="<i>tower")
        page = write_report(store, tmp_path / "report.html").read_text()
    (pipeline,) = json.loads(page[page.index('"pipelines":') + len('"pipelines":') :].partition("}</script>")[0])
    assert (pipeline["task"], pipeline["step"], pipeline["timetable"]) == ("<i>tower", 4, "1f1b")
    assert pipeline["planned"]["ranks"][0][0][:3] == pipeline["measured"]["ranks"][0][0][:3] == ["forward", 0, 0]
    assert "<i>tower" not in page
    with Store(None, write=True) as store:
        assert '"pipelines":[]' in write_report(store, tmp_path / "none.html").read_text()


def test_the_command_draws_both(tmp_path):
    with Store(tmp_path, write=True) as store:
        fill(store)
    found = CliRunner().invoke(app, ["timetable", "tower", "--store", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert found.output.index("planned: ") < found.output.index("measured in step 4: ")
    assert found.output.count("rank 1") == 2


def test_a_plan_is_drawn_before_anything_ran(tmp_path):
    with Store(tmp_path, write=True) as store:
        task = fill(store, is_measured=False)
        ((_, _, plan),) = store.plans()
    plan = dataclasses.replace(plan, workload=Workload(name="sweep", tasks=(task,)), cluster=CLUSTER)
    (drawn,) = plan_page.timetables(plan, store=tmp_path)
    assert drawn.planned is not None
    page = plan_page.write_plan(plan, tmp_path / "plan.html", store=tmp_path).read_text()
    assert '"measured":null}]' in page[page.index('"pipelines":') :]
