"""Weighted entities over tasks: a fair part for each team, shared inside as the team likes."""

from collections import defaultdict
from collections.abc import Hashable

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.share.levels import raise_together
from dovetail.planning.share.policies.water_filling import frozen
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation, Entity, InvalidWorkload, Member

_SLACK = 1e-7


def allocate(problem: Problem) -> Allocation:
    """Water filling of rate(m) ÷ (claim(m) · reference(m)), where each entity's weight is what its tasks claim.

    Inside an entity with `fairness` the claims of tasks that can still have more are in proportion to their weights;
    with `first_come` the earliest of them claims all. When a task can have no more its claim passes to the
    others of its entity, and when none of these can, to everybody. Tasks of no entity are an entity of weight 1.

    >>> from dovetail.planning.share.policies import example
    >>> round(allocate(example()).value, 4)
    3.0
    """
    entities = {entity.name: entity for entity in (Entity(name=""), *problem.entities)}
    _refuse_strangers(problem, entities)
    arrays = columns(problem, alike=lambda member: _alike(member, entities[member.entity]))
    references = arrays.references()
    levels, x = np.zeros(references.size), np.zeros(arrays.options.size)
    waiting = np.ones(references.size, bool)
    first = 0.0
    while waiting.any():
        claims = _claims(arrays, entities, waiting)
        lifted = claims > 0
        units = references * np.where(lifted, claims, 1.0)
        raised = raise_together(
            arrays, units=units, lifted=lifted, floors=np.where(lifted, 0.0, levels / units), spread=False
        )
        assert raised is not None, "what was reached before can be reached again"
        first, x = first or raised.level, raised.x
        holding = frozen(raised, lifted)
        levels[holding] = (raised.level * units * (1 - _SLACK))[holding]
        waiting &= ~holding
    return arrays.allocation(x, value=first)


def _claims(arrays: Columns, entities: dict[str, Entity], waiting: np.ndarray) -> Numbers:
    """What a task of each group claims now; zero where it waits for an earlier one or can have no more."""
    of_entity: dict[str, list[int]] = defaultdict(list)
    for group in np.flatnonzero(waiting).tolist():
        of_entity[arrays.members[group][0].entity].append(group)
    claims = np.zeros(waiting.size)
    for name, groups in of_entity.items():
        entity = entities[name]
        if entity.inside == "first_come":
            groups = [min(groups, key=lambda group: -arrays.members[group][0].age_seconds)]
        weights = np.array([arrays.members[group][0].weight for group in groups])
        claims[groups] = entity.weight * weights / (weights @ arrays.sizes[groups])
    return claims


def _alike(member: Member, entity: Entity) -> Hashable:
    if entity.inside == "first_come":
        return entity.name, member.weight, member.age_seconds
    return entity.name, member.weight


def _refuse_strangers(problem: Problem, entities: dict[str, Entity]) -> None:
    for family in problem.families:
        for member in family.members:
            if member.entity not in entities:
                raise InvalidWorkload(
                    f"task {member.task!r} must run for an entity of its problem, one of {sorted(entities)[1:]}, "
                    f"got {member.entity!r}."
                )
