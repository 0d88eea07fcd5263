"""From what a client sends to tasks, checked. Runs on a client's thread: reads files, runs no code of theirs, and knows
nothing of where tasks stand."""

import dataclasses
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.describe import check_names, program
from dovetail.vocabulary import DovetailError, InvalidWorkload, Program, Task, check_bounds, from_json

NAME_LENGTH = 1000
# A submission's tasks stand in a list, and their parameters in each: what is too deep for a task is refused by it.
_DEPTH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """Tasks to take on, under the name of their workload, as urgent as `priority` says, to have ended by `deadline`, on
    behalf of an `entity`, if of any, and for a `reason`, if one was said. Clones say whose they are, by name, and the
    step of the weights that they begin with. If `anew`, what the store has of these tasks already is removed."""

    workload: str
    tasks: tuple[Task, ...]
    priority: float = 1.0
    deadline_seconds: float = math.inf
    entity: str = ""
    of: str = ""
    step: int = 0
    anew: bool = False
    reason: str = ""


def read_submission(request: Mapping[str, Any], *, now: float) -> Submission:
    """The submission in a request, or what is wrong with it."""
    given = request.get("tasks")
    if not isinstance(given, list) or not given:
        raise InvalidWorkload(f"a submission must have a list of tasks, at least one, got {shown(given)}.")
    check_bounds(given, where="a submission", depth=_DEPTH)
    programs: dict[Program, Program] = {}
    return Submission(
        workload=read_name(request.get("workload") or "submitted", what="a workload's name"),
        tasks=tuple(_read_task(each, programs) for each in given),
        priority=read_priority(request.get("priority", 1.0)),
        deadline_seconds=read_deadline(request.get("deadline_seconds"), now=now),
        entity=read_name(request.get("entity", ""), what="an entity's name"),
        reason=read_name(request.get("reason", ""), what="a reason"),
    )


def read_priority(given: Any) -> float:
    """A priority, or what is wrong with it.

    >>> read_priority(2)
    2.0
    """
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 0 < given <= sys.float_info.max:
        raise InvalidWorkload(
            f"a priority must be a number greater than 0 (1 is usual, 2 counts twice), got {shown(given)}."
        )
    return float(given)


def shown(given: Any) -> str:
    """The beginning of what was sent, for an error.

    >>> shown("one")
    "'one'"
    """
    return repr(given)[:80]


def read_name(given: Any, *, what: str) -> str:
    """The name of something, or what is wrong with it.

    >>> read_name("vision", what="an entity's name")
    'vision'
    """
    if not isinstance(given, str) or given.encode(errors="replace").decode() != given:
        raise InvalidWorkload(f"{what} must be text, and all of it UTF-8, got {shown(given)}.")
    if len(given) > NAME_LENGTH:
        raise InvalidWorkload(f"{what} must have at most {NAME_LENGTH} characters, got {len(given)}.")
    return given


def changed(task: Task, changes: Any) -> dict[str, Any]:
    """The parameters of `task` with these changes, or which of them its program does not take."""
    if not isinstance(changes, dict):
        raise InvalidWorkload(f"changed parameters must be an object of names and values, got {shown(changes)}.")
    check_bounds(changes, where="changed parameters")
    check_names(task.program, changes)
    return {**task.parameters, **changes}


def current(found: Program) -> Program:
    """The program as its file has it now. One that only a process or a store holds is refused."""
    place = found.reference.rpartition(":")[0]
    if found.reference.startswith("pickle:"):
        raise InvalidWorkload(
            f"a submitted program must be named 'file.py:function' or 'package.module:function', got "
            f"{found.function!r}, which only the submitting process holds. Put it at the top level of a file."
        )
    path = place if place.endswith(".py") else found.root
    if path and not Path(path).is_absolute():
        raise InvalidWorkload(f"a submitted program's file must be given by its whole path, got {path!r}.")
    try:
        return program(found)
    except OSError as error:
        raise InvalidWorkload(f"a submitted program's file must be readable by the daemon; found: {error}.") from error


def _read_task(given: Any, programs: dict[Program, Program]) -> Task:
    task = from_json(Task, given)
    if task.begins_with:
        raise InvalidWorkload(f"task {task.name!r} must begin with what its program builds; clone one to begin warm.")
    if task.program not in programs:
        try:
            programs[task.program] = current(task.program)
        except DovetailError as error:
            raise InvalidWorkload(f"task {task.name!r}: {error}") from error
    return dataclasses.replace(task, program=programs[task.program])


def read_deadline(given: Any, *, now: float) -> float:
    """When something is to have ended, or what is wrong with that; never, where nothing is given.

    >>> read_deadline(None, now=5.0), read_deadline(9, now=5.0)
    (inf, 9.0)
    """
    if given is None:
        return math.inf
    check_bounds(given, where="a deadline")
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise InvalidWorkload(f"a deadline must be a time in seconds since 1970, got {shown(given)}.")
    if given <= now:
        raise InvalidWorkload(f"a deadline must lie ahead; this one has passed {now - given:.0f} s ago.")
    return float(given)
