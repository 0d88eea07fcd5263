"""List schedules for a target where memory binds: who starts when and with what, and what that is worth."""

import random

import pytest

from dovetail.planning import PLANNERS, Problem, check
from dovetail.planning.schedule.dual_approximation import DualApproximation
from dovetail.planning.schedule.table import Start, makespan, tabulate
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, Option

from ..problems import CPU, family, option, placement


def approximation(*offered: Option, steps: dict[str, int], cluster: Cluster, **more: object) -> DualApproximation:
    problem = Problem(cluster=cluster, families=(family(**steps),), options=offered, **more)  # type: ignore[arg-type]
    table = tabulate(problem)
    return DualApproximation(table, prices=[mode.area for mode in table.modes])


def starts(made: DualApproximation, found: list[Start] | None) -> list[tuple[float, int, float]]:
    assert found is not None
    modes = made.table.modes
    return [(modes[each.mode].seconds, modes[each.mode].option.count, each.start_seconds) for each in found]


def test_the_longest_first_on_the_first_free_device() -> None:
    steps = dict(zip("abcde", (5, 4, 3, 3, 3), strict=True))
    made = approximation(option(), steps=steps, cluster=Cluster.uniform(CPU, devices_per_node=2))
    assert starts(made, made.fit(11.0)) == [(5, 1, 0.0), (4, 1, 0.0), (3, 1, 4.0), (3, 1, 5.0), (3, 1, 7.0)]


def test_a_tight_target_makes_tasks_wide_and_a_loose_one_leaves_them_narrow() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=2)
    made = approximation(option(1, seconds=1.0), option(2, seconds=0.6), steps={"a": 10}, cluster=cluster)
    assert starts(made, made.fit(10.0)) == [(10.0, 1, 0.0)]
    assert starts(made, made.fit(9.0)) == [(6.0, 2, 0.0)]
    assert made.fit(5.0) is None


def test_a_shorter_task_starts_where_the_longest_would_end_too_late() -> None:
    cluster = Cluster(
        kinds=(CPU, Kind(name="slow", processor="cpu")),
        nodes=(Node(name="n0", cores=2, memory_bytes=8),),
        devices=tuple(Device(name=kind, kind=kind, node="n0", index=0) for kind in ("cpu", "slow")),
    )
    offered = (option(seconds=1.0), option(kind="slow", seconds=3.0))
    made = approximation(*offered, steps={"a": 10, "b": 8, "c": 6}, cluster=cluster)
    assert starts(made, made.fit(19.0)) == [(10.0, 1, 0.0), (18.0, 1, 0.0), (8.0, 1, 10.0)]


def test_what_runs_delays_what_starts() -> None:
    running = (placement("old", of=option(), on=("n0:0",), seconds=3.0),)
    made = approximation(option(), steps={"a": 5}, cluster=Cluster.uniform(CPU), running=running)
    assert starts(made, made.fit(8.0)) == [(5.0, 1, 3.0)]


def memory_bound(tasks: int) -> Problem:
    """Half of the tasks need much host memory; the others, which are longer, take it where they may, and with a
    twentieth more time could do without."""
    dice, large = random.Random(0), 48 << 30
    families = tuple(
        Family(
            name=name, members=tuple(Member(task=f"{name}{n}", steps=dice.randrange(*span)) for n in range(tasks // 2))
        )
        for name, span in (("needy", (100, 200)), ("flexible", (200, 400)))
    )
    figures = (
        ("needy", "spill", 1.0, large),
        ("flexible", "spill", 1.0, large),
        ("flexible", "resident", 1.05, 1 << 30),
    )
    options = tuple(
        Option(families=(name,), technique=how, kind="cpu", count=1, step_seconds=(seconds,), host_bytes=needed)
        for name, how, seconds, needed in figures
    )
    return Problem(
        cluster=Cluster.uniform(CPU, nodes=8, devices_per_node=8, memory_bytes=128 << 30),
        families=families,
        options=options,
    )


@pytest.mark.parametrize("planner", ["list", "proportionate"])
def test_thousands_of_tasks_short_of_memory_are_planned_by_what_is_scarce(planner: str) -> None:
    problem = memory_bound(2_400)
    made = PLANNERS[planner](problem).schedule
    assert made is not None
    check(made, problem.cluster)
    table = tabulate(problem)
    by_area = DualApproximation(table, prices=[mode.area for mode in table.modes])
    frugal = by_area.fit(10 * made.makespan_seconds)
    assert frugal is not None
    former = makespan(table, by_area.shorten(frugal, low=made.makespan_seconds / 2))
    assert former >= 1.1 * made.makespan_seconds, "device-seconds alone, as list schedules of thousands once had it"
