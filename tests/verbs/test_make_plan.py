"""Planning for this machine and for others: what is asked, what is predicted, what is shown, what is refused."""

import dataclasses
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.cli.answering import figures
from dovetail.cli.gantt import ROWS, gantt
from dovetail.planning import PLANNERS, Problem
from dovetail.planning.options.kinds import parse_cluster
from dovetail.verbs.amendments import amend, price_cluster
from dovetail.verbs.make_plan import imagine_problem, solve
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    FamilyKey,
    InvalidWorkload,
    LayerProfile,
    Profile,
    Schedule,
    Workload,
)
from tests.cli.processes import dovetail
from tests.planning.problems import CPU, family, option, placement

RATED = dataclasses.replace(CPU, matrix_flops_per_second=4e10, memory_bytes_per_second=1e10)
HERE = Cluster.uniform(RATED, devices_per_node=2)
KNOWN = Profile(family="f", kind="cpu", count=1, step_seconds=1.0, peak_bytes=1 << 30)
PAIR = tuple(dt.task("dovetail.testing.programs:dropout", name=name, steps=9) for name in ("first", "second"))
FIRST, SECOND = (task.identity for task in PAIR)
SEARCH = functools.partial(PLANNERS["search"], work=0.5)


def pair(**wishes) -> Workload:
    """A workload of two tasks."""
    return dt.workload(PAIR, name="pair", **wishes)


SWEEP = """
import torch
from torch import nn

import dovetail as dt


def line(width=8, seed=0):
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
    data = [torch.ones(8, 4)] * 4
    return dt.Training(
        model=model,
        batches=data,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


workload = dt.grid(line, width=[8, 64], seed=[0, 1], steps=200)
"""


def test_what_was_not_measured_is_predicted_and_marked() -> None:
    problem = Problem(
        cluster=HERE,
        families=(
            dataclasses.replace(family("f (2 threads)", **{FIRST: 10}), key=FamilyKey(family="f", threads=2)),
            family("f", **{SECOND: 10}),
        ),
        options=(option(),),
    )
    cluster = parse_cluster("2xa100+2xcpu", at_hand=[RATED])
    other = imagine_problem(problem, cluster, profiles=[KNOWN], at_hand=[RATED], workload=pair())
    assert {(each.kind, each.measured) for each in other.options if each.technique == "resident"} == {
        ("a100", False),
        ("cpu", True),
    }
    assert [each.name for each in other.families] == ["f"]
    made = solve(other, pair(), SEARCH)
    assert {each.option.kind for each in made.schedule.placements} == {"a100"}
    assert "(predicted)" in made.explanation[0]


def test_a_task_too_large_for_one_imagined_device_is_planned_on_several() -> None:
    layer = LayerProfile(name="0", operation="Linear", forward_seconds=0.3, backward_seconds=0.6)
    large = dataclasses.replace(
        KNOWN, peak_bytes=60 << 30, parameter_bytes=10 << 30, optimizer_bytes=20 << 30, layers=(layer,)
    )
    problem = Problem(cluster=HERE, families=(family("f", a=10),), options=(option(),))
    cluster = parse_cluster("8xa100+4xv100")
    other = imagine_problem(problem, cluster, profiles=[large], at_hand=[RATED], workload=pair())
    made = solve(other, pair(), SEARCH)
    (only,) = made.schedule.placements
    assert (only.option.kind, only.option.measured) == ("a100", False)
    assert only.option.count > 1


def test_weights_are_by_name_and_explanations_tell_what_more_would_buy() -> None:
    members = {FIRST: 10, SECOND: 10}
    problem = Problem(cluster=Cluster.uniform(CPU), families=(family(**members),), options=(option(),))
    made = solve(problem, pair(objective="weighted", weights={"second": 4.0}), SEARCH, explain_seconds=1.0)
    assert [each.tasks for each in made.schedule.placements] == [(SECOND,), (FIRST,)]
    assert made.explanation[0].startswith("second, first: ")
    assert made.explanation[-1].startswith("one more cpu: weighted 10.0 s instead of 12.0 s")


def test_deadlines_are_by_name_and_kept() -> None:
    members = {FIRST: 10, SECOND: 20}
    problem = Problem(cluster=Cluster.uniform(CPU), families=(family(**members),), options=(option(),))
    made = solve(problem, pair(deadlines={"second": 20.0}), SEARCH)
    assert [each.tasks for each in made.schedule.placements] == [(SECOND,), (FIRST,)]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_of_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(DovetailError, match="the solver must have a time limit above 0 s"):
        dt.plan(pair(), solve_seconds=seconds)


def test_wishes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidWorkload, match="weights belong to objective 'weighted', got them with 'mean'"):
        amend(pair(), objective="mean", weights={"first": 1.0})
    with pytest.raises(InvalidWorkload, match="a weight must be for a task of the workload; there is no 'third'"):
        amend(pair(), objective="weighted", weights={"third": 1.0})
    with pytest.raises(DovetailError, match="must have a price for each kind of the cluster, found none for 'cpu'"):
        price_cluster(HERE, {}, pair(objective="spend:deadline=2h"))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1e6), st.floats(1e-3, 1e6)), max_size=80))
def test_bars_fit_their_width_whatever_the_schedule(drawn: list[tuple[int, float, float]]) -> None:
    placements = tuple(
        placement(f"t{n}", on=(f"n0:{device}",), start=start, seconds=seconds)
        for n, (device, start, seconds) in enumerate(drawn)
    )
    lines = gantt(Schedule(placements=placements), names={}, width=60)
    assert len(lines) <= ROWS + 3
    assert all(len(line.plain) <= 60 for line in lines if "│" in line.plain)
    if drawn:
        assert sum("│" in line.plain for line in lines) == min(ROWS, len({device for device, _, _ in drawn}))


@pytest.mark.slow
@pytest.mark.process
def test_an_imagined_cluster_from_the_command_line_to_the_page(tmp_path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    asked = ("plan", "sweep.py", "--cluster", "2xa100+1xv100", "--solve-seconds", "1")
    found = dovetail(*asked, "--objective", "mean", "--explain", "--output", "plan.html", cwd=tmp_path)
    assert found.code == 0, found.out
    for word in ("resident (predicted)", "n1:0", "│A", "mean ", "one more v100: mean"):
        assert word in found.out
    assert '"placements":[[' in (tmp_path / "plan.html").read_text()
    money = dovetail(
        *asked, "--objective", "spend:deadline=1h", "--price", "a100=2.5", "--price", "v100=1", "--json", cwd=tmp_path
    )
    read = money.json()
    assert read["objective"] == "spend:deadline=3600s"
    assert 0 < read["bound"] <= read["value"] + 1e-12
    assert not any(each["option"]["measured"] for each in read["schedule"]["placements"])
    prices = ("--price", "a100=1", "--price", "v100=1")
    late = dovetail(*asked, "--deadline", "line width=8 seed=1=0.001s", cwd=tmp_path)
    assert late.code == 2
    assert "'line width=8 seed=1' is due in 1.0 ms; its fastest option takes" in late.err
    run = dovetail("run", "sweep.py", "--deadline", "line width=8 seed=1=0.001s", cwd=tmp_path)
    assert run.code == 2
    assert "'line width=8 seed=1' was due" in run.err
    refused = dovetail(*asked, "--objective", "spend:deadline=0.001s", *prices, cwd=tmp_path)
    assert refused.code == 2
    assert "everything must end by the deadline of 1.0 ms, and no schedule does" in refused.err


@pytest.mark.parametrize("given", ["a100", "=2", "a100=", "a100=two"])
def test_figures_must_have_a_name_and_a_number(given: str) -> None:
    with pytest.raises(DovetailError, match=r"--price must be a name and a number, as in --price a100=2\.50"):
        figures([given], "--price", "a100=2.50")
