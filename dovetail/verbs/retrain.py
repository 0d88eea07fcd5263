"""What `dovetail drift --on-drift retrain` does: a workload's tasks go to the daemon with the new data, once."""

import dataclasses
import hashlib
from pathlib import Path

from dovetail.control.daemon.submissions import NAME_LENGTH
from dovetail.describe import check_names
from dovetail.verbs.client import Client
from dovetail.vocabulary import Workload
from dovetail.vocabulary.user_text import shorten

# Enough to tell files apart that are ever compared with one reference.
_DIGITS = 8


def retrain(workload: Workload, *, data: Path, parameter: str, reason: str, store: str | Path) -> list[str]:
    """Submit a workload's tasks, each with `data` as this parameter and under a name that says which data; gives their
    names, or nothing where the daemon has had them before: the same file is trained on once. The `reason` is put on
    record with each."""
    client = Client(store, asked_by="dovetail drift")
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
    for program in {task.program for task in workload.tasks}:
        check_names(program, [parameter])
    tasks = tuple(
        dataclasses.replace(
            task, name=f"{task.name}, data {digest}", parameters={**task.parameters, parameter: str(data.resolve())}
        )
        for task in workload.tasks
    )
    return dataclasses.replace(workload, tasks=tasks, name=f"{workload.name}, retrained")
