"""Gavel's max-min fairness as its paper writes it: one linear program with a variable for every task (or pair of tasks)
and kind, no two tasks merged. Ours are the lines, its are the formulas; solved by the solver that Dovetail uses.

    maximise t  with, for each task m,  Σ rate(m, o) · x(o) ≥ t · reference(m)   over the options o that run m,
    Σ x(o) ≤ 1 over them,  and for each kind  Σ count(o) · x(o) ≤ its devices.

The reference is what one device of the average kind gives, as in `policies/max_min_fairness`.
"""

import time

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.solver.linear import LinearProgram, maximise


def solve(problem: Problem) -> tuple[float, float]:
    """The CPU seconds from the problem to its optimum, and the optimum t."""
    began = time.process_time()
    found = maximise(program(problem))
    assert found is not None
    return time.process_time() - began, found.value


def program(problem: Problem) -> LinearProgram:
    """Columns are options of named tasks; the last is t. Rows are: rates, times, devices."""
    members = {family.name: np.array([], dtype=int) for family in problem.families}
    tasks = 0
    for family in problem.families:
        members[family.name] = np.arange(tasks, tasks + len(family.members))
        tasks += len(family.members)
    kinds = [kind.name for kind, _ in problem.cluster.counts()]
    rows, columns, values, width = [], [], [], 0
    for option in problem.options:
        if any(name not in members for name in option.families):
            continue
        gangs = _gangs([members[name] for name in option.families], equal=len(set(option.families)) == 1)
        place = width + np.arange(len(gangs))
        width += len(gangs)
        for member, seconds in zip(gangs.T, option.step_seconds, strict=True):
            rows += [member, tasks + member]
            columns += [place, place]
            values += [np.full(len(place), 1 / seconds), np.ones(len(place))]
        rows.append(np.full(len(place), 2 * tasks + kinds.index(option.kind)))
        columns.append(place)
        values.append(np.full(len(place), float(option.count)))
    rows.append(np.arange(tasks))
    columns.append(np.full(tasks, width))
    values.append(-_references(problem, members, tasks))
    upper = np.concatenate([np.full(tasks, np.inf), np.ones(tasks), [count for _, count in problem.cluster.counts()]])
    lower = np.concatenate([np.zeros(tasks), np.full(tasks + len(kinds), -np.inf)])
    objective = np.zeros(width + 1)
    objective[-1] = 1.0
    return LinearProgram(
        objective=objective,
        rows=np.concatenate(rows),
        columns=np.concatenate(columns),
        values=np.concatenate(values),
        lower=lower,
        upper=upper,
    )


def _gangs(members: list[np.ndarray], *, equal: bool) -> np.ndarray:
    """Every task, or every pair of two tasks, a row each."""
    if len(members) == 1:
        return members[0][:, None]
    pairs = np.stack(np.meshgrid(*members, indexing="ij"), axis=-1).reshape(-1, len(members))
    return pairs[pairs[:, 0] < pairs[:, 1]] if equal else pairs


def _references(problem: Problem, members: dict[str, np.ndarray], tasks: int) -> np.ndarray:
    everything = sum(count for _, count in problem.cluster.counts())
    found = np.zeros(tasks)
    for kind, count in problem.cluster.counts():
        for name, places in members.items():
            alone = [o for o in problem.options if o.families == (name,) and o.kind == kind.name]
            found[places] += count / everything * max((1 / (o.step_seconds[0] * o.count) for o in alone), default=0.0)
    return found
