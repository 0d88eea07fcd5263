"""A plan is what runs: placement by placement where nothing changed, and with a reason where something did."""

import dataclasses

import pytest

import dovetail as dt
from dovetail.engines import SimulatedEngine
from dovetail.planning import PLANNERS
from dovetail.planning.options.kinds import parse_cluster
from dovetail.store import Point, Store
from dovetail.vocabulary import Cluster, DovetailError, InvalidWorkload, Kind, Plan, Schedule, TrainingError, Workload
from tests.control.simulations import cluster, task, workload, world

LENGTHS = {"long": 400, "middle": 60, "short": 30, "tiny": 10}


def engine(**rates) -> SimulatedEngine:
    return SimulatedEngine(world(**rates), kind_of=lambda device: "sim")


def sweep(**lengths: int) -> Workload:
    return workload(*(task(name, steps=steps) for name, steps in (lengths or LENGTHS).items()))


def make_plan(store, work: Workload | None = None, *, devices: int = 1, **wishes) -> Plan:
    on = cluster(devices)
    return dt.plan(work or sweep(), cluster=on, engine=engine(), store=store, solve_seconds=0.5, **wishes)


def carry_out(what, store, **wishes):
    return dt.run(what, engine=engine(), store=store, progress=False, **wishes)


def started(store) -> list[tuple[str, tuple[str, ...], str]]:
    """What was started since the store was made, in order: the task, its devices, its technique."""
    with Store(store) as opened:
        events = [event for _, event in opened.events() if event.kind == "started"]
    return [(event.task, event.devices, event.option.technique) for event in events]


def planned(plan: Plan) -> list[tuple[str, tuple[str, ...], str]]:
    ordered = sorted(plan.schedule.placements, key=lambda placement: (placement.start_seconds, placement.devices))
    return [(name, each.devices, each.option.technique) for each in ordered for name in each.tasks]


def reasons(store) -> list[str]:
    """Why each plan of the store was made."""
    with Store(store) as opened:
        return [event.because for _, event in opened.events() if event.kind == "planned"]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_schedule_that_runs_is_the_one_that_was_shown(tmp_path, devices):
    objectives = ("mean", "makespan")
    by_mean, by_makespan = (make_plan(tmp_path / each, devices=devices, objective=each) for each in objectives)
    assert planned(by_mean) != planned(by_makespan)
    for plan, store in ((by_mean, "mean"), (by_makespan, "makespan")):
        result = carry_out(plan, tmp_path / store)
        assert all(each.status == "finished" for each in result.tasks)
        assert started(tmp_path / store) == planned(plan)
        assert reasons(tmp_path / store) == ["the run began"]
        with Store(tmp_path / store) as opened:
            ((_, kept),) = [(at, each) for at, _, each in opened.plans()]
        assert kept.schedule == plan.schedule


def test_a_planner_of_ones_own_makes_the_plan_that_runs(tmp_path):
    def backwards(problem):
        found = PLANNERS["search"](problem, work=0.0)
        whole = found.schedule.makespan_seconds
        turned = [dataclasses.replace(p, start_seconds=whole - p.end_seconds) for p in found.schedule.placements]
        return dataclasses.replace(found, schedule=dataclasses.replace(found.schedule, placements=tuple(turned)))

    plan = make_plan(tmp_path, planner=backwards)
    assert [name for name, _, _ in planned(plan)] == [name for name, _, _ in planned(make_plan(tmp_path))][::-1]
    carry_out(plan, tmp_path)
    assert started(tmp_path) == planned(plan)


@pytest.mark.parametrize("objective", ["mean", "makespan"])
def test_an_objective_is_followed_wherever_it_is_said(tmp_path, objective):
    in_workload = dataclasses.replace(sweep(), objective=objective)
    carry_out(in_workload, tmp_path / "workload", cluster=cluster(1))
    carry_out(sweep(), tmp_path / "run", cluster=cluster(1), objective=objective)
    carry_out(make_plan(tmp_path / "plan", in_workload), tmp_path / "plan")
    steps = {each.identity: each.stop.steps for each in sweep().tasks}
    for store in ("workload", "run", "plan"):
        lengths = [steps[name] for name, _, _ in started(tmp_path / store)]
        assert (lengths == sorted(lengths)) == (objective == "mean")


def test_weights_say_who_comes_first(tmp_path):
    weights = {"long": 1000.0, "tiny": 0.001}
    plan = make_plan(tmp_path, objective="weighted", weights=weights)
    assert (plan.workload.objective, plan.workload.weights) == ("weighted", weights)
    names = {each.identity: each.name for each in plan.workload.tasks}
    carry_out(plan, tmp_path)
    order = [names[name] for name, _, _ in started(tmp_path)]
    assert (order[0], order[-1]) == ("long", "tiny")
    carry_out(sweep(), tmp_path / "run", cluster=cluster(1), objective="weighted", weights=weights)
    assert [names[name] for name, _, _ in started(tmp_path / "run")] == order


def test_what_changed_since_the_plan_makes_another_for_the_same_objective(tmp_path):
    plan = make_plan(tmp_path, objective="mean")
    carry_out(sweep(short=30), tmp_path, cluster=cluster(1))
    carry_out(plan, tmp_path)
    (_, because) = reasons(tmp_path)
    assert because == "the run began, and the plan that it was given does not apply: 'short' is finished by now"
    names = {each.identity: each.name for each in plan.workload.tasks}
    assert [names[name] for name, _, _ in started(tmp_path)] == ["short", "tiny", "middle", "long"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"objective": "makespan"}, "it is for objective mean, and makespan is wanted"),
        ({"cluster": cluster(2)}, "the cluster has other devices"),
        ({"techniques": "-fuse"}, ""),
        ({"deadlines": {"long": 1e6}}, ""),
        ({"deadlines": {"long": 401.0}}, "must have ended by 401 s, its deadline, found an end at 500 s"),
    ],
)
def test_other_wishes_than_the_plans(tmp_path, change, why):
    plan = make_plan(tmp_path, objective="mean")
    carry_out(plan, tmp_path, **change)
    assert (reasons(tmp_path)[0] == "the run began") == (not why)
    assert why in reasons(tmp_path)[0]


def test_a_task_that_was_edited_is_planned_anew(tmp_path):
    plan = make_plan(tmp_path)
    longer = dataclasses.replace(plan, workload=sweep(**LENGTHS | {"short": 31}))
    carry_out(longer, tmp_path)
    assert reasons(tmp_path)[0].endswith("'short' has 31 steps left, not 30")
    other = make_plan(tmp_path / "other")
    gone = dataclasses.replace(other, workload=sweep(long=400, middle=60, added=30))
    carry_out(gone, tmp_path / "other")
    assert "'" in (because := reasons(tmp_path / "other")[0])
    assert because.endswith("is no longer in the workload")


def test_an_option_that_was_rejected_since_is_planned_anew(tmp_path):
    plan = make_plan(tmp_path)
    spilled = tuple(
        dataclasses.replace(placement, option=dataclasses.replace(placement.option, technique="spill"))
        for placement in plan.schedule.placements
    )
    carry_out(dataclasses.replace(plan, schedule=Schedule(placements=spilled)), tmp_path)
    assert "spill on 1 × sim is no longer an option for '" in reasons(tmp_path)[0]


def test_forbidding_all_that_fits_fails_every_task_with_the_reason(tmp_path):
    result = carry_out(sweep(), tmp_path, cluster=cluster(1), techniques="spill,shard", raise_on_failure=False)
    for each in result.tasks:
        assert each.status == "failed"
        assert "no option fits it" in each.reason
        assert "allows only techniques shard,spill (--techniques, techniques=)" in each.reason
    with pytest.raises(DovetailError, match=r"no task could be planned(.|\n)*--techniques, techniques="):
        make_plan(tmp_path / "plan", techniques="spill")


def test_failed_tasks_are_raised_with_their_reasons_and_shown_with_them(tmp_path):
    names = sorted(each.name for each in sweep().tasks)
    with pytest.raises(
        TrainingError, match=rf"{len(names)} of {len(names)} failed:\n  {names[0]}: .*no option fits it"
    ):
        carry_out(sweep(), tmp_path, cluster=cluster(1), techniques="spill,shard")
    assert str(dt.open_result(tmp_path)).count("no option fits it") == len(names)


@pytest.mark.parametrize("raise_on_failure", [True, False])
def test_an_interrupt_is_raised_once_all_is_saved_and_the_next_run_goes_on(tmp_path, raise_on_failure):
    def interrupt(controller):
        controller.post("stop", reason="interrupted by SIGINT")

    with pytest.raises(KeyboardInterrupt, match="interrupted by SIGINT"):
        carry_out(sweep(), tmp_path, cluster=cluster(1), observe=interrupt, raise_on_failure=raise_on_failure)
    assert any(each.status != "finished" for each in dt.open_result(tmp_path).tasks)
    assert all(each.status == "finished" for each in carry_out(sweep(), tmp_path, cluster=cluster(1)).tasks)


def test_wishes_that_nobody_can_fulfil_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(DovetailError, match=r"a technique \(--techniques, techniques=\) must be one of .*'resident'\?"):
        carry_out(sweep(), tmp_path, techniques="-resedent")
    with pytest.raises(InvalidWorkload, match=r"objective must be one of .*got 'mena'; did you mean 'mean'\?"):
        carry_out(sweep(), tmp_path, objective="mena")
    with pytest.raises(DovetailError, match="for accelerators only; this cluster has none, but sim"):
        carry_out(sweep(), tmp_path, cluster=cluster(1), device_memory="24 GiB")
    with pytest.raises(DovetailError, match=r"planner must be one of .*got 'serach'; did you mean 'search'"):
        carry_out(sweep(), tmp_path, planner="serach")
    with pytest.raises(DovetailError, match="the engine must be a name, an Engine or a function"):
        dt.run(sweep(), engine=3, store=tmp_path)
    assert not (tmp_path / "store.sqlite").exists()


def test_an_engine_may_be_made_by_a_function(tmp_path):
    made = []

    def make(where, *, home, silence_seconds):
        made.append((where, home))
        return engine()

    dt.run(sweep(tiny=10), engine=make, cluster=cluster(1), store=tmp_path, progress=False)
    assert made == [(cluster(1), tmp_path)]


def test_a_plan_for_devices_that_are_not_here_is_not_run(tmp_path):
    work = dt.grid("dovetail.testing.programs:dropout", seed=[0], steps=9)
    for other in (parse_cluster("2xa100"), parse_cluster("2xa100").limit_memory(24 << 30)):
        with pytest.raises(DovetailError, match="must be for devices that are here; this one is for a100"):
            dt.run(Plan(workload=work, cluster=other), progress=False, store=tmp_path)


def test_limited_device_memory_is_another_kind_in_plan_and_run(tmp_path):
    h200 = Kind(name="h200", processor="cuda", memory_bytes=141 << 30)
    where = Cluster.uniform(h200, memory_bytes=512 << 30)

    def simulated() -> SimulatedEngine:
        return SimulatedEngine(world(peak_bytes=lambda family: 8 << 30), kind_of=lambda device: "h200-24GiB")

    plan = dt.plan(sweep(tiny=10), cluster=where, engine=simulated(), store=tmp_path, device_memory="24 GiB")
    (only,) = plan.schedule.placements
    assert (only.option.kind, plan.cluster.kinds[0].memory_bytes) == ("h200-24GiB", 24 << 30)
    with pytest.raises(DovetailError, match="as much memory as it was made for; plan again"):
        dt.run(plan, device_memory="48 GiB", engine=simulated(), store=tmp_path)
    dt.run(plan, engine=simulated(), store=tmp_path, progress=False)
    assert started(tmp_path) == planned(plan)


def test_fresh_trains_all_anew(tmp_path):
    carry_out(sweep(long=40, short=10), tmp_path, cluster=cluster(1))
    assert len(started(tmp_path)) == 2
    carry_out(sweep(long=40, short=10), tmp_path, cluster=cluster(1))
    assert len(started(tmp_path)) == 2
    result = carry_out(sweep(long=40, short=10), tmp_path, cluster=cluster(1), fresh=True)
    assert len(started(tmp_path)) == 4
    assert [(each.status, each.step) for each in result.tasks] == [("finished", 40), ("finished", 10)]
    with Store(tmp_path) as opened:
        assert [event.step for _, event in opened.events() if event.kind == "started"] == [0, 0, 0, 0]


def test_a_fresh_run_has_no_metrics_of_the_one_before(tmp_path):
    work = sweep(one=40)
    carry_out(work, tmp_path, cluster=cluster(1))
    with Store(tmp_path, write=True) as opened:
        opened.add(points=[Point(task=work.tasks[0].identity, name="old", step=1, value=1.0, at_seconds=0.0)])
    assert "old" in carry_out(work, tmp_path, cluster=cluster(1)).tasks[0].metrics
    assert "old" not in carry_out(work, tmp_path, cluster=cluster(1), fresh=True).tasks[0].metrics
