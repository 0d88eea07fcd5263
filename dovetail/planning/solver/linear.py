"""Linear programs that are given whole, as sparse arrays.

Knows rows, columns and tolerances; does not know tasks or devices. GLOP (simplex) for all shapes, because it wins at
those that families leave, and very many unlike tasks go by prices (`decompose`). One objective, CPU milliseconds and
how far off (OR-tools 9.15, max-min fairness on Gavel's table):

  rows × columns     GLOP   HiGHS simplex   HiGHS interior point   PDLP to 1e-4    PDLP to 1e-6
  170 × 247             2               4                      -              -               -
  170 × 1,024           6              14                     21    28, 2e-4 off   108, 2e-6 off
  2,052 × 3,033        74             180                     88    73, 4e-4 off   175, 7e-7 off
  8,196 × 12,119    1,050           3,038                    644   462, 2e-4 off 1,193, 9e-6 off

Starting from the last round's basis was tried: 131 pivots become 0 to 2, and 9 ms for building and solving become 2 if
the solver object is kept, 13 if the basis is handed over as data. The first would have plans depend on the plans before
them, the second does not pay, and an allocation of that size takes 36 ms, most of it outside the solver.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.planning.solver.door import NotSolved, load

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
# How much of the first objective the second may take, as a share of it: below what anybody reads, above
# what the solver calls equal.
YIELDED = 1e-7
# How much work whole numbers may take; what they are asked for takes a hundredth of it.
WORK = 1.0
# Up to so many columns, looking for simplifications takes GLOP longer than it saves.
_SMALL = 500
_PLAIN = "use_preprocessing: false"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearProgram:
    """Maximise objective·x over x ≥ 0 with lower ≤ A·x ≤ upper, A given by the row, column and value of its entries."""

    objective: Numbers
    rows: Indices
    columns: Indices
    values: Numbers
    lower: Numbers
    upper: Numbers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """An optimum: `x`, the objective's value there, and what one unit more of each row would be worth."""

    x: Numbers
    value: float
    duals: Numbers


def maximise(program: LinearProgram, *, then: Numbers | None = None) -> Solution | None:
    """An optimum of the program, or None where nothing is feasible; of several optima one that maximises `then·x`.

    >>> two = LinearProgram(objective=np.array([1.0, 1.0]), rows=np.array([0, 0]), columns=np.array([0, 1]),
    ...               values=np.ones(2), lower=np.full(1, -np.inf), upper=np.full(1, 3.0))
    >>> first = maximise(two, then=np.array([0.0, 1.0]))
    >>> round(first.value, 5), first.x.round(5).tolist()
    (3.0, [0.0, 3.0])
    """
    model = _model(program)
    small = program.objective.size <= _SMALL
    found = _solve(model, parameters=_PLAIN if small else "")
    if found is None or then is None:
        return found
    kept = model.add_linear_constraint()
    for column in np.flatnonzero(program.objective).tolist():
        model.add_term_to_constraint(kept, column, float(program.objective[column]))
    model.set_constraint_lower_bound(kept, found.value - YIELDED * abs(found.value))
    model.set_constraint_upper_bound(kept, np.inf)
    for column in np.flatnonzero((then == 0) & (program.objective != 0)).tolist():
        model.set_var_objective_coefficient(column, 0.0)  # the call for all at once passes zeros over
    model.set_objective_coefficients(list(range(then.size)), then.tolist())
    # The first optimum is feasible but for the new row, which the dual simplex mends faster than a new start.
    better = _solve(model, parameters=f"use_dual_simplex: true {_PLAIN if small else ''}")
    # Within the solver's tolerance the first optimum may not satisfy its own row; it is an optimum still.
    x = found.x if better is None else better.x
    return Solution(x=x, value=float(program.objective @ x), duals=found.duals)


def maximise_whole(program: LinearProgram, *, most: Numbers) -> Numbers | None:
    """The x in whole numbers, each at most `most`, that maximises the program; None where there is none, or where none
    was proven the best within `WORK`. On CP-SAT, with deterministic work.

    >>> half = LinearProgram(objective=np.ones(2), rows=np.zeros(2, int), columns=np.arange(2), values=np.full(2, 2.0),
    ...                lower=np.full(1, -np.inf), upper=np.full(1, 3.0))
    >>> float(maximise_whole(half, most=np.ones(2)).sum())
    1.0
    """
    model = _model(program)
    for column, upper in enumerate(most.tolist()):
        model.set_var_integrality(column, True)
        model.set_var_upper_bound(column, upper)
    solver = _helper().ModelSolverHelper("sat")
    solver.set_solver_specific_parameters(f"num_workers: 1 catch_sigint_signal: false max_deterministic_time: {WORK}")
    solver.solve(model)
    if solver.status() != _helper().SolveStatus.OPTIMAL:
        return None
    return np.asarray(solver.variable_values()).round()


def _model(program: LinearProgram) -> Any:
    model = _helper().ModelBuilderHelper()
    size = program.objective.size
    model.add_var_array([size], 0.0, np.inf, False, "")
    # What a model is not told of is 0 in the objective and unbounded in the rows.
    used = np.flatnonzero(program.objective)
    model.set_objective_coefficients(used.tolist(), program.objective[used].tolist())
    model.set_maximize(True)
    for lower, upper in zip(program.lower.tolist(), program.upper.tolist(), strict=True):
        row = model.add_linear_constraint()
        if lower > -np.inf:
            model.set_constraint_lower_bound(row, lower)
        if upper < np.inf:
            model.set_constraint_upper_bound(row, upper)
    add = model.add_term_to_constraint
    for row, column, value in zip(
        program.rows.tolist(), program.columns.tolist(), program.values.tolist(), strict=True
    ):
        add(row, column, value)
    return model


def _solve(model: Any, *, parameters: str = "") -> Solution | None:
    helper = _helper()
    solver = helper.ModelSolverHelper("glop")
    solver.set_solver_specific_parameters(parameters)
    solver.solve(model)
    status = solver.status()
    if status == helper.SolveStatus.INFEASIBLE:
        return None
    if status != helper.SolveStatus.OPTIMAL:
        raise NotSolved(f"a linear program must be solved to its end, GLOP ended with {solver.status_string()!r}.")
    return Solution(
        x=np.maximum(np.asarray(solver.variable_values()), 0.0),
        value=solver.objective_value(),
        duals=np.asarray(solver.dual_values()),
    )


def _helper() -> Any:
    return load("ortools.linear_solver.python.model_builder_helper")
