"""A controller that stays: it takes tasks on while it runs, and idles when there is nothing to do.

What clients send is read and checked on their own threads; what it leads to happens on the controller's, one request
after another, and is on disk before it is answered. All it knows is in its store: a daemon killed at any moment is
replaced by the next one on the same store.
"""

import concurrent.futures
import contextlib
import os
import time
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


# So long a list waits for the controller, which may be deciding over thousands of tasks, before it is the last one; and
# so old that may be.
BRIEF_SECONDS, RECENT_SECONDS = 0.1, 5.0


class Answers:
    """What clients are told, each on its own thread. A list is of now, or where the controller is busy of a moment ago,
    if nothing was asked for since that could have changed it."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._asked = 0  # counted before and after whatever may change something
        self._last: tuple[int, float, dict[str, Any]] | None = None

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        what = request["do"]
        if what == "stop":
            self._controller.post("stop", reason=str(request.get("reason", "a stop was asked for"))[:NAME_LENGTH])
            return {"done": "everything is saved, then the controller stops"}
        if what == "status":
            return {"process": os.getpid(), "phase": self._controller.phase, **self._list()}
        if what == "list":
            return self._list()
        try:
            if what == "submit":
                request = {**request, "submission": read_submission(request, now=self._controller.now())}
        except DovetailError as error:
            return {"error": str(error)}
        self._asked += 1
        try:
            return _wait(self._post(request), PATIENCE_SECONDS)
        finally:
            self._asked += 1

    def _list(self) -> dict[str, Any]:
        asked = self._asked
        reply = self._post({"do": "list"})
        reply.add_done_callback(lambda done: self._keep(asked, done.result()))
        last = self._last
        if last is not None and last[0] == asked and time.monotonic() - last[1] < RECENT_SECONDS:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return reply.result(BRIEF_SECONDS)
            if self._asked == asked:
                return last[2]
        return _wait(reply, PATIENCE_SECONDS)

    def _keep(self, asked: int, found: dict[str, Any]) -> None:
        self._last = asked, time.monotonic(), found

    def _post(self, request: dict[str, Any]) -> "concurrent.futures.Future[dict[str, Any]]":
        """Have the controller's own thread answer."""
        reply: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        self._controller.post("request", request=request, reply=reply.set_result)
        return reply


def _wait(reply: "concurrent.futures.Future[dict[str, Any]]", seconds: float) -> dict[str, Any]:
    try:
        return reply.result(seconds)
    except concurrent.futures.TimeoutError:
        return {"error": f"the controller was busy for {seconds:.0f} s; what was asked for may still be done"}
