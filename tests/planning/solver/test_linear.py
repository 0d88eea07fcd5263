"""The door for linear programs: optima, ties, infeasibility, and no silent answers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.planning.solver import NotSolved, linear
from dovetail.planning.solver.linear import LinearProgram, maximise, maximise_whole


def program(**changes: Any) -> LinearProgram:
    """Maximise x + y with x + y ≤ 2 and x ≤ 1.5."""
    fields = {
        "objective": np.ones(2),
        "rows": np.array([0, 0, 1]),
        "columns": np.array([0, 1, 0]),
        "values": np.ones(3),
        "lower": np.full(2, -np.inf),
        "upper": np.array([2.0, 1.5]),
    }
    return LinearProgram(**{**fields, **changes})


def test_ties_are_broken_by_the_second_objective() -> None:
    found = maximise(program(), then=np.array([1.0, 0.0]))
    assert found is not None
    assert found.value == pytest.approx(2.0, rel=1e-6)
    assert found.x == pytest.approx([1.5, 0.5], abs=1e-6)


def test_duals_say_what_a_row_is_worth() -> None:
    found = maximise(program())
    assert found is not None
    assert found.duals == pytest.approx([1.0, 0.0])


def test_what_is_infeasible_has_no_solution() -> None:
    assert maximise(program(lower=np.array([3.0, -np.inf]))) is None


def test_what_the_solver_gives_up_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSolved, match="must be solved to its end, GLOP ended with"):
        maximise(program(upper=np.full(2, np.inf)))
    helper = linear._helper()
    stopped = SimpleNamespace(
        ModelBuilderHelper=helper.ModelBuilderHelper,
        SolveStatus=helper.SolveStatus,
        ModelSolverHelper=lambda name: SimpleNamespace(
            set_solver_specific_parameters=lambda text: None,
            solve=lambda model: None,
            status=lambda: helper.SolveStatus.NOT_SOLVED,
            status_string=lambda: "time limit",
        ),
    )
    monkeypatch.setattr(linear, "_helper", lambda: stopped)
    with pytest.raises(NotSolved, match="'time limit'"):
        maximise(program())


def test_whole_numbers_are_the_best_there_are_or_none() -> None:
    found = maximise_whole(program(), most=np.full(2, 5.0))
    assert found is not None
    assert found.sum() == 2
    assert found[0] <= 1
    assert maximise_whole(program(lower=np.array([3.0, -np.inf])), most=np.full(2, 5.0)) is None
