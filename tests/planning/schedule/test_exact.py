"""Gaps are closed from both sides, whichever questions the solver leaves open."""

from collections.abc import Sequence

import pytest

from dovetail.planning.problem import Problem
from dovetail.planning.schedule.exact import close_gap
from dovetail.planning.schedule.judges import Judge
from dovetail.planning.schedule.list_schedule import frugal_modes, shortest_list
from dovetail.planning.schedule.packing_model import PackingModel
from dovetail.planning.schedule.table import Start, tabulate
from dovetail.planning.solver import Goal, Packed
from dovetail.vocabulary import Cluster, Family, Kind, Member, Objective, Option


def three_on_two() -> Judge:
    """Three tasks of ten seconds on two devices: twenty seconds, and areas say that fifteen are needed."""
    option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    family = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    return Judge(tabulate(Problem(cluster=cluster, families=(family,), options=(option,))), Objective(name="makespan"))


@pytest.mark.parametrize("refutable", [15.5, 17.0, 19.0])
def test_what_can_be_refuted_is_though_nothing_above_it_can_be_answered(monkeypatch, refutable):
    def ask(
        model: PackingModel, target: float, starts: Sequence[Start], work: float, goal: Goal | None = None
    ) -> Packed:
        is_none = target < refutable
        return Packed(starts=None, is_none=is_none, work=work / 10 if is_none else work)

    monkeypatch.setattr(PackingModel, "ask", ask)
    judge = three_on_two()
    known = judge.incumbent(shortest_list(judge.table, frugal_modes(judge.table)), bound=15.0)
    closed = close_gap(judge, known, work=10.0)
    assert refutable * 0.99 < closed.bound < refutable * 1.01
    assert closed.starts == known.starts


def test_the_solver_itself_closes_it():
    judge = three_on_two()
    known = judge.incumbent(shortest_list(judge.table, frugal_modes(judge.table)), bound=15.0)
    assert close_gap(judge, known, work=5.0).gap < 0.002
