"""A controller that stays: it takes tasks on while it runs, and idles when there is nothing to do.

What clients send is read and checked on their own threads; what it leads to happens on the controller's, one request
after another, and is on disk before it is answered. All it knows is in its store: a daemon killed at any moment is
replaced by the next one on the same store.
"""

import concurrent.futures
import os
from typing import Any

from dovetail.control.daemon.commands import PATIENCE_SECONDS
from dovetail.control.daemon.submissions import NAME_LENGTH, read_submission
from dovetail.control.loop import Controller
from dovetail.metrics.progress import fold
from dovetail.store import Store
from dovetail.vocabulary import DovetailError, Task, Workload

NAME = "daemon"


def standing(store: Store, *, objective: str = "weighted") -> Workload:
    """The workload of a daemon on this store: every task that was ever submitted to one and not replaced since.

    >>> standing(Store(None, write=True)).tasks
    ()
    """
    progress = fold(event for _, event in store.events())
    tasks = tuple(task for _, task in store.tasks() if _is_standing(task, progress))
    return Workload(name=NAME, tasks=tasks, objective=objective, open=True)


def _is_standing(task: Task, progress: Any) -> bool:
    one = progress.get(task.identity)
    return one is not None and one.submitted_seconds is not None and not one.vanished


def answer(controller: Controller, request: dict[str, Any]) -> dict[str, Any]:
    """What a client is told, on its own thread."""
    if request["do"] == "stop":
        controller.post("stop", reason=str(request.get("reason", "a stop was asked for"))[:NAME_LENGTH])
        return {"done": "everything is saved, then the controller stops"}
    if request["do"] == "status":
        return {"process": os.getpid(), "phase": controller.phase, **_asked(controller, {"do": "list"})}
    try:
        if request["do"] == "submit":
            request = {**request, "submission": read_submission(request, now=controller.now())}
    except DovetailError as error:
        return {"error": str(error)}
    return _asked(controller, request)


def _asked(controller: Controller, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the controller's own thread."""
    reply: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
    controller.post("request", request=request, reply=reply.set_result)
    try:
        return reply.result(PATIENCE_SECONDS)
    except concurrent.futures.TimeoutError:
        return {"error": f"the controller was busy for {PATIENCE_SECONDS:.0f} s; what was asked for may still be done"}
