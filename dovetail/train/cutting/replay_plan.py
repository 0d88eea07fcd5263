"""What one stage does at each event of the recorded run: run it, pass over it, or go inside.

Whole modules are run or passed over wherever their values that cross are what they return; so a stage spends time
between modules only where it is cut.
"""

import dataclasses
import enum
from collections.abc import Mapping

from torch import nn

from dovetail.train.cutting.record import OPAQUE, TraceEvent, Value
from dovetail.train.cutting.stage_assignment import StageAssignment
from dovetail.train.cutting.tensor_layouts import TensorLayout
from dovetail.vocabulary import TechniqueRefused


class ReplayStep(enum.Enum):
    """What a stage does at an event: run it, pass over it, or go inside."""

    RUN = enum.auto()
    PASS = enum.auto()
    INSIDE = enum.auto()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """What one stage does at each event of the recorded run, and what it takes and gives."""

    stage: int
    is_last: bool
    events: list[TraceEvent]
    steps: dict[int, ReplayStep]
    """By event number; events inside one that is run or passed over have none."""
    before: int
    """The last event that an earlier stage computes."""
    last: int
    """The last event that this stage computes."""
    takes: dict[str, Value]
    gives: dict[str, Value]
    keeps: dict[int, list[tuple[int, Value]]]
    """What to keep of an event's output, by its place among the leaves."""
    counted: dict[int, list[nn.Module]]
    """Modules whose calls inside an event passed over count, because this stage calls them too."""
    copies: set[Value]
    gradients: dict[Value, TensorLayout | None]
    """For values made here whose gradients must be laid out again when they come back, how."""
    takes_random: bool
    gives_random: bool


def plan(made: StageAssignment, stage: int, *, gradients: Mapping[Value, TensorLayout | None]) -> ReplayPlan:
    """What a stage of a divided run does. `gradients` says how those of values that cross lie in memory."""
    events = made.record.events
    taken = set(made.takes[stage]) if stage else set()
    is_last = stage == made.count - 1
    given = [] if is_last else made.takes[stage + 1]
    last = max(event.number for event, where in made.stage.items() if where == stage)
    steps: dict[int, ReplayStep] = {}
    number = 0
    while number < len(events) and (is_last or number <= last):
        event = events[number]
        steps[number] = step = _step(made, event, stage, taken, set(given))
        number = number + 1 if step is ReplayStep.INSIDE else event.end
    run = {n for n, step in steps.items() if step is ReplayStep.RUN}
    called = {e.module for n in run for e in made.inside(events[n]) if e.module is not None}
    counted = {
        n: [e.module for e in made.inside(events[n]) if e.module is not None and e.module in called]
        for n, step in steps.items()
        if step is ReplayStep.PASS
    }
    return ReplayPlan(
        stage=stage,
        is_last=is_last,
        events=events,
        steps=steps,
        before=max((event.number for event, where in made.stage.items() if where < stage), default=-1),
        last=last,
        takes={value.name: value for value in made.takes[stage]},
        gives={value.name: value for value in given},
        keeps={n: kept for n in run if (kept := _given_outputs(events[n], set(given)))},
        counted={n: modules for n, modules in counted.items() if modules},
        copies=made.copies[stage],
        gradients={
            value: gradients[value]
            for value in given
            if value in gradients and value not in taken and (value.layout or gradients[value])
        },
        takes_random=0 < stage <= made.last_random,
        gives_random=stage + 1 <= made.last_random,
    )


def _step(made: StageAssignment, event: TraceEvent, stage: int, taken: set[Value], given: set[Value]) -> ReplayStep:
    inside = made.inside(event)
    stages = {made.stage[each] for each in inside if each in made.stage}
    values = {value for each in inside for value in each.makes}
    outputs = {leaf for leaf in event.outputs if isinstance(leaf, Value)}
    if event.is_read or stages <= {stage}:
        reads_others = any(each.is_read and each is not event for each in inside) and not stages
        if values & given <= outputs and not reads_others:
            return ReplayStep.RUN
    elif stage not in stages and _can_pass(made, event, inside, values) and values & taken <= outputs:
        return ReplayStep.PASS
    if event.is_leaf:
        raise TechniqueRefused(
            f"what crosses between stages must be tensors in tuples, lists and dicts; {event} of stage "
            f"{min(stages)} gives something else. Keep it and what uses it in one stage."
        )
    return ReplayStep.INSIDE


def _can_pass(made: StageAssignment, event: TraceEvent, inside: list[TraceEvent], values: set[Value]) -> bool:
    if not event.is_leaf and any(each.module is not None and each.module._forward_hooks for each in inside):
        return False  # hooks see what modules give, absent or not
    if any(leaf is OPAQUE or (isinstance(leaf, Value) and leaf not in values) for leaf in event.outputs):
        return False
    constants = {value for value in values if value.producer in made.free}
    if not constants:
        return True
    within = set(inside)
    return not any(value in constants for e in made.record.events if e not in within for value in e.reads)


def _given_outputs(event: TraceEvent, given: set[Value]) -> list[tuple[int, Value]]:
    return [(n, leaf) for n, leaf in enumerate(event.outputs) if isinstance(leaf, Value) and leaf in given]
