"""TensorBoard event files: a folder for each task, its curves at the times they were measured, its parameters for the
HParams tab, the plan as text.

Writes TensorBoard's records directly: its own EventFileWriter starts a thread for each file and names files by the
clock. Here each run has one file that is appended to, of which the cursor notes the length: what a killed process wrote
beyond that is cut off, and written again. Events name the run that they are of, so that no other store's are touched.
"""

import contextlib
import io
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dovetail.store import Point
from dovetail.trackers.base import OpenedRun, RunFacts, Tracker, check_folder, flatten_parameters

FILE = "events.out.tfevents.0.dovetail"
_LONGEST_NAME = 100
_STATUSES = {
    "finished": "SUCCESS",
    "halved": "SUCCESS",
    "pruned": "SUCCESS",
    "failed": "FAILURE",
    "cancelled": "FAILURE",
}
# A record is its length, a checksum of that, its data, and a checksum of those.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4


class TensorboardTracker(Tracker):
    """`tensorboard:FOLDER`; `tensorboard --logdir FOLDER` shows it."""

    distributions = ("tensorboard",)
    least_version = "2.16"
    extra = "tensorboard"
    takes_models = False

    @classmethod
    def resolve(cls, place: str) -> str:
        """The folder's full path."""
        return str(Path(place or "runs").expanduser().absolute())

    @classmethod
    def check(cls, place: str) -> None:
        """Refuse a folder that cannot be written."""
        check_folder(Path(place))

    def __init__(self, place: str) -> None:
        self._root = Path(place)
        self._formats = _Formats()

    def open(self, run: RunFacts, state: str, *, metrics: Iterable[str]) -> OpenedRun:
        """Choose the run's folder; a file that was removed, or cut, since is begun anew."""
        known = json.loads(state) if state else {}
        if known:
            path = self._root / known["folder"] / FILE
            with contextlib.suppress(OSError):
                if path.stat().st_size >= known["length"] and _owner_of(path) == run.key:
                    return OpenedRun(state=state)
        folder = known.get("folder") or self._choose_folder(run)
        # Nothing is held: not even what was noted.
        return OpenedRun(state=_state(folder, 0), held=dict.fromkeys(metrics, -1))

    def send(self, run: RunFacts, state: str, points: Sequence[Point], *, facts: bool) -> str:
        """Append to the run's file."""
        known = json.loads(state)
        folder, length = self._root / known["folder"], int(known["length"])
        folder.mkdir(parents=True, exist_ok=True)
        records: list[bytes] = []
        if not length:
            records.append(self._formats.head(run))
        records += [self._formats.scalar(point) for point in points]
        if facts:
            records += self._formats.facts(run)
        return _state(known["folder"], _append(folder / FILE, length, records))

    def _choose_folder(self, run: RunFacts) -> str:
        """A folder named like the run, with what no file system minds; with a piece of its key where that is needed to
        tell it from another task of this name (one that was edited), or from another store's."""
        if not run.parent:
            name = "."
        else:
            name = re.sub(r"[^\w.,=+@ -]", "_", run.name)[:_LONGEST_NAME]
        owner = _owner_of(self._root / name / FILE)
        is_own = owner is None or owner.startswith(f"{run.subject}-") or owner == run.key
        if is_own and (name == run.name or name == "."):
            return name
        piece = run.subject.partition("-")[2][:8] if owner is None or _store_of(owner) == _store_of(run.key) else ""
        return f"{name}-{piece or run.key[:12]}" if name != "." else f"workload-{run.key[:12]}"


class _Formats:
    """TensorBoard's message classes; importing them takes a second."""

    def __init__(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata as hparams
        from tensorboard.plugins.hparams import plugin_data_pb2 as hparams_data
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.text import metadata as text
        from tensorboard.util import tensor_util

        self._event, self._source, self._summary = Event, SourceMetadata, Summary
        self._hparams, self._hparams_data, self._status = hparams, hparams_data, Status
        self._text, self._tensor = text, tensor_util.make_tensor_proto

    def head(self, run: RunFacts) -> bytes:
        """The file's version, without which readers refuse it, and whose it is."""
        source = self._source(writer=run.key)
        at = run.started_seconds or time.time()
        return bytes(
            self._event(wall_time=at, file_version="brain.Event:2", source_metadata=source).SerializeToString()
        )

    def scalar(self, point: Point) -> bytes:
        value = self._summary.Value(tag=point.name, simple_value=point.value)
        event = self._event(wall_time=point.at_seconds, step=point.step, summary=self._summary(value=[value]))
        return bytes(event.SerializeToString())

    def facts(self, run: RunFacts) -> Iterable[bytes]:
        if not run.parent:
            for name, text in run.texts.items():
                # As Markdown, in which indented lines stay as they are.
                lines = "".join(f"    {line}\n" for line in text.splitlines())
                value = self._summary.Value(
                    tag=name,
                    metadata=self._text.create_summary_metadata(display_name=name, description=""),
                    tensor=self._tensor([lines.encode()]),
                )
                yield self._encode_event(run.started_seconds, value)
            return
        yield self._encode_event(run.started_seconds, self._session_start(run))
        if run.has_ended:
            yield self._encode_event(run.ended_seconds, self._session_end(run))

    def _session_start(self, run: RunFacts) -> Any:
        info = self._hparams_data.SessionStartInfo(start_time_secs=run.started_seconds or 0.0)
        for name, value in flatten_parameters(run.parameters).items():
            if isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                info.hparams[name].number_value = value
            elif value is not None:
                info.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
        content = self._hparams_data.HParamsPluginData(session_start_info=info)
        return self._hparams_value(self._hparams.SESSION_START_INFO_TAG, content)

    def _session_end(self, run: RunFacts) -> Any:
        status = self._status.Value(f"STATUS_{_STATUSES.get(run.status, 'UNKNOWN')}")
        info = self._hparams_data.SessionEndInfo(status=status, end_time_secs=run.ended_seconds or 0.0)
        content = self._hparams_data.HParamsPluginData(session_end_info=info)
        return self._hparams_value(self._hparams.SESSION_END_INFO_TAG, content)

    def _hparams_value(self, tag: str, content: Any) -> Any:
        metadata = self._hparams.create_summary_metadata(content)
        return self._summary.Value(tag=tag, metadata=metadata, tensor=self._hparams.NULL_TENSOR)

    def _encode_event(self, seconds: float | None, value: Any) -> bytes:
        event = self._event(wall_time=seconds or time.time(), summary=self._summary(value=[value]))
        return bytes(event.SerializeToString())


def _append(path: Path, length: int, records: Iterable[bytes]) -> int:
    """Write records behind the first so many bytes of a file, in the place of what is there; its new length."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for record in records:
        writer.write(record)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "r+b") as file:
        file.seek(length)
        file.write(content.getvalue())
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _owner_of(path: Path) -> str | None:
    """The key of the run that a file is of, empty where it does not say; None where there is no file."""
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        content = path.open("rb").read(4096)
        size = int.from_bytes(content[:8], "little")
        record = Event.FromString(content[_HEADER_BYTES : _HEADER_BYTES + size])
    except FileNotFoundError:
        return None
    except Exception:  # whatever parsing half a file leads to
        return ""
    return str(record.source_metadata.writer)


def _store_of(key: str) -> str:
    return key.partition("-")[0]


def _state(folder: str, length: int) -> str:
    return json.dumps({"folder": folder, "length": length})
