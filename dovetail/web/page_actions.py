"""What a page asks of a controller, checked and passed on through the controller's socket, with who asked for it.

Runs on a thread of its own: a controller may be busy, and one that hangs is given up after a while.
"""

import dataclasses
import getpass
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.verbs.client import Client
from dovetail.vocabulary import DovetailError, InvalidWorkload, Stop, Task, to_json
from dovetail.vocabulary.redact import show_value

# How long a controller may take over its answer, before a user is told that it has not come.
PATIENCE_SECONDS = 20.0
MOST_TASKS = 1000
_PLAIN = ("pause", "resume", "cancel")


def act(home: Path, wanted: dict[str, Any], known: Sequence[Task]) -> dict[str, Any]:
    """Ask for what a page `wanted` and give the controller's answer; `known` holds the task that it is about."""
    client = Client(home, asked_by=f"{_user()}, on the page", patience_seconds=PATIENCE_SECONDS)
    what = wanted.get("do")
    if what == "stop":
        return {"done": client.stop()}
    if not known:
        raise InvalidWorkload(f"an action must be about a task in the store, got {wanted.get('id')!r}.")
    task = known[-1]
    if what in _PLAIN:
        return {"done": getattr(client, str(what))(task.name)}
    if what == "priority":
        return {"done": client.priority(task.name, wanted.get("priority", math.nan))}
    if what == "deadline":
        return {"done": client.deadline(task.name, wanted.get("deadline_seconds"))}
    if what == "clone":
        return {"done": _clone(client, task, wanted)}
    if what == "add":
        return {"done": _add(client, task, wanted)}
    if what == "why":
        return {"done": _waiting_reason(client, task)}
    raise InvalidWorkload(f"an action must be one that the page has, got {what!r}.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user on this machine, as in some containers
        return "somebody"


def _clone(client: Client, task: Task, wanted: dict[str, Any]) -> str:
    changes = wanted.get("parameters") or {}
    if not isinstance(changes, dict):
        raise InvalidWorkload(f"changed parameters must be names and values, got {changes!r}.")
    answer = client.ask(
        {
            "do": "clone",
            "task": task.name,
            "parameters": changes,
            "warm": bool(wanted.get("warm")),
            "name": wanted.get("name") or None,
        }
    )
    return str(answer["done"])


def _add(client: Client, task: Task, wanted: dict[str, Any]) -> str:
    """Submit a grid over some parameters of a task's program: every combination of the values that were given."""
    grid = wanted.get("grid") or {}
    if not isinstance(grid, dict) or not grid or not all(isinstance(each, list) and each for each in grid.values()):
        raise InvalidWorkload(f"a grid must be lists of values by the names of parameters, got {grid!r}.")
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_TASKS:
        raise InvalidWorkload(f"a grid from the page must have at most {MOST_TASKS:,} tasks, got {count:,}.")
    stop = task.stop
    if steps := wanted.get("steps"):
        stop = dataclasses.replace(stop, steps=int(steps), epochs=None) if isinstance(steps, int) else Stop(steps=steps)
    tasks = [_variant(task, dict(zip(grid, values, strict=True)), stop) for values in itertools.product(*grid.values())]
    answer = client.ask(
        {
            "do": "submit",
            "workload": "added on the page",
            "tasks": [to_json(each) for each in tasks],
            "priority": wanted.get("priority") or 1.0,
            "deadline_seconds": _moment(wanted.get("deadline_seconds")),
        }
    )
    return f"{answer['done']}: {', '.join(answer['tasks'][:5])}{' and more' if count > 5 else ''}"


def _variant(task: Task, changes: dict[str, Any], stop: Stop) -> Task:
    """The task with other parameters, by a name that says which."""
    words = [f"{key}={show_value(key, value, str(value))}" for key, value in changes.items()]
    kept = [word for word in task.name.split(" ") if word.partition("=")[0] not in changes]
    name = " ".join([*kept, *words]).replace("/", "_")
    parameters = {**task.parameters, **changes}
    return dataclasses.replace(task, name=name, parameters=parameters, stop=stop, begins_with="")


def _moment(seconds_from_now: Any) -> float | None:
    if seconds_from_now is None:
        return None
    if isinstance(seconds_from_now, bool) or not isinstance(seconds_from_now, int | float):
        raise InvalidWorkload(f"a deadline must be a number of seconds from now, got {seconds_from_now!r}.")
    return time.time() + seconds_from_now


def _waiting_reason(client: Client, task: Task) -> str:
    """What the controller itself says of a task that waits. It is asked once, by a user, and never by itself."""
    for row in client.list():
        if row["task"] == task.name:
            return str(row["why"]) or "nothing is to be said of it"
    raise DovetailError(f"the controller that runs now has no task {task.name!r}.")
