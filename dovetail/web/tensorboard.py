"""The store's metrics as TensorBoard event files, one run for each task, at the times they were measured.

Writes TensorBoard's records directly: its own EventFileWriter starts a thread for each file and names files by the
clock, so that exporting twice would show every curve twice. Here a second export replaces the first.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dovetail.store import Point, Store, write_atomically
from dovetail.vocabulary import DovetailError, Task
from dovetail.vocabulary.redact import Redactor

_FILE = "events.out.tfevents.0.dovetail"
_LONGEST_NAME = 100


def write_tensorboard(store: Store, directory: Path, *, workload: str | None = None) -> int:
    """Write the scalars of one workload's tasks, or of all, below `directory`; gives their number.

    >>> import tempfile
    >>> with Store(None, write=True) as store, tempfile.TemporaryDirectory() as folder:
    ...     write_tensorboard(store, Path(folder))
    0
    """
    tasks = [task for _, task in store.tasks(workload=workload)]
    formats = _Formats(Redactor((task.parameters for task in tasks), variables=os.environ))
    folders = run_folders(tasks)
    count = 0
    for task in tasks:
        points = sorted(store.points(task.identity), key=lambda point: (point.at_seconds, point.step))
        if points:
            _write(directory / folders[task.identity], formats.records(points))
            count += len(points)
    return count


def check_export(directory: Path) -> None:
    """Refuse an export to `directory` that could not be written, before anything is trained for it."""
    _Formats(Redactor())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(f"{directory} cannot be written")
    except OSError as error:
        raise _unwritable(error) from error


def run_folders(tasks: Iterable[Task]) -> dict[str, str]:
    """A folder name for each task, by identity: its name, with what no file system minds, and with a piece of its
    identity where that is needed to tell it from others (a task that was edited keeps its name).

    >>> from dovetail.vocabulary import Program, Stop
    >>> list(run_folders([Task(name="a=1", program=Program(reference="a.py:f"), stop=Stop(steps=1))]).values())
    ['a=1']
    """
    tasks = list(tasks)
    redact = Redactor((task.parameters for task in tasks), variables=os.environ)
    plain = {task.identity: re.sub(r"[^\w.,=+@ -]", "_", redact(task.name))[:_LONGEST_NAME] for task in tasks}
    # Some file systems take upper and lower case for the same.
    times = Counter(name.lower() for name in plain.values())
    names = {task.identity: task.name for task in tasks}
    return {
        identity: name if times[name.lower()] == 1 and name == names[identity] else f"{name}-{identity[:8]}"
        for identity, name in plain.items()
    }


class _Formats:
    """TensorBoard's message classes, imported on first use since not everyone has it."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
        except ImportError as error:
            raise DovetailError(
                "exporting to TensorBoard must have the package tensorboard; it is not installed. "
                "Install it: pip install 'dovetail[tensorboard]'."
            ) from error
        self._event, self._summary = Event, Summary

    def records(self, points: list[Point]) -> Iterator[bytes]:
        """The file's version, without which readers refuse it, then a record for each point."""
        yield self._event(wall_time=points[0].at_seconds, file_version="brain.Event:2").SerializeToString()
        for point in points:
            yield self._scalar(point).SerializeToString()

    def _scalar(self, point: Point) -> Any:
        value = self._summary.Value(tag=self._redact.name(point.name), simple_value=point.value)
        return self._event(wall_time=point.at_seconds, step=point.step, summary=self._summary(value=[value]))


def _write(folder: Path, records: Iterable[bytes]) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for record in records:
        writer.write(record)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _FILE, content.getvalue())
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> DovetailError:
    return DovetailError(
        f"the export's directory must be one that this user can write; found: {error}. Choose another."
    )
