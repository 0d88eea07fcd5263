"""What `--on-drift retrain` does: a workload's tasks go to the daemon with the new data, once."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.control.daemon.submissions import NAME_LENGTH
from dovetail.describe import check_names, load_workload
from dovetail.serve.server.latest_rows import Rows
from dovetail.store.atomic_write import write_atomically
from dovetail.verbs.client import Client, check_submittable
from dovetail.vocabulary import Workload
from dovetail.vocabulary.user_text import shorten

# Enough to tell files apart that are ever compared with one reference.
_DIGITS = 8


def retrain(
    workload: Workload, *, data: Path, parameter: str, reason: str, asked_by: str, store: str | Path
) -> list[str]:
    """Submit a workload's tasks, each with `data` as this parameter and under a name that says which data; gives their
    names, or nothing where the daemon has had them before: the same file is trained on once. The `reason` is put on
    record with each."""
    client = Client(store, asked_by=asked_by)
    named = with_data(workload, data=data, parameter=parameter)
    known = {row["task"] for row in client.list()}
    new = tuple(task for task in named.tasks if task.name not in known)
    if not new:
        return []
    return client.submit(dataclasses.replace(named, tasks=new), reason=shorten(reason, most=NAME_LENGTH))


def with_data(workload: Workload, *, data: Path, parameter: str) -> Workload:
    """The workload on other data. Names carry a digest of the file, so that new content is a new task, whatever the
    file is called, and the same content the same one."""
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
    _check_parameter(workload, parameter)
    tasks = tuple(
        dataclasses.replace(
            task, name=f"{task.name}, data {digest}", parameters={**task.parameters, parameter: str(data.resolve())}
        )
        for task in workload.tasks
    )
    return dataclasses.replace(workload, tasks=tasks, name=f"{workload.name}, retrained")


def _check_parameter(workload: Workload, parameter: str) -> None:
    for program in {task.program for task in workload.tasks}:
        check_names(program, [parameter])


class RowTraining:
    """What a server does about a drift: the rows in which it was seen go to a file beside the store, and the workload's
    tasks to the daemon with that file. Of each model that answers there is one such file for answers and one for
    labels, so that a server that is started again, or sees the same again, submits nothing twice. What can be refused
    without rows is refused at once."""

    def __init__(self, workload: str, *, parameter: str, store: Path) -> None:
        self._workload, self._parameter, self._store = load_workload(workload), parameter, store
        check_submittable(self._workload)
        _check_parameter(self._workload, parameter)

    def __call__(self, about: Mapping[str, Any], what: str, rows: Rows, reason: str) -> str:
        """Submit; gives what came of it, in words. `about` says which model answers."""
        path = self._path(about, what)
        if not path.exists():
            import safetensors.numpy

            path.parent.mkdir(exist_ok=True)
            write_atomically(path, safetensors.numpy.save(dict(rows)))
        names = retrain(
            self._workload,
            data=path,
            parameter=self._parameter,
            reason=f"{reason}, as {about.get('model')!r} answered",
            asked_by="dovetail serve",
            store=self._store,
        )
        count = f"{len(names)} task{'' if len(names) == 1 else 's'} submitted"
        return f"{count if names else 'submitted before'}: trained on the rows in {path}"

    def _path(self, about: Mapping[str, Any], what: str) -> Path:
        digest = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()[:_DIGITS]
        return self._store / "drift" / f"{what}-{digest}.safetensors"
