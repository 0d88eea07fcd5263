"""Weights & Biases: a run for each task, all of a workload in one group, and one for the workload itself.

Online or offline as `WANDB_MODE` and `wandb offline` say. A step of training is a step of W&B, so what a run holds is
told by its last step: online the server says it when the run is resumed, offline the files of the run do, since W&B
resumes nothing there. What a killed process left unsent is sent again from there.
"""

import configparser
import contextlib
import netrc
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from dovetail.store import Point
from dovetail.trackers.base import OpenedRun, RunFacts, Tracker, check_folder
from dovetail.vocabulary import DovetailError

_SERVER = "https://api.wandb.ai"
# Files of W&B are logs of records in blocks, as LevelDB's: each piece has a checksum, its length and whether it is a
# whole record (1), or the first, a middle or the last piece of one (2, 3, 4). Seven bytes say that it is such a file.
_BLOCK_BYTES, _HEADER_BYTES, _WHOLE, _FIRST, _LAST = 32768, 7, 1, 2, 4


class WandbTracker(Tracker):
    """`wandb:PROJECT` or `wandb:ENTITY/PROJECT`."""

    distributions = ("wandb",)
    least_version = "0.21"
    extra = "wandb"

    @classmethod
    def resolve(cls, place: str) -> str:
        """The project, whether it is online, and the server or the folder."""
        if not place or place.count("/") > 1 or set(place) & set("\\#?%:"):
            raise DovetailError(
                f"W&B must be given a project, as in wandb:PROJECT or wandb:ENTITY/PROJECT, got {place!r}."
            )
        mode = os.environ.get("WANDB_MODE") or _settings().get("mode") or "online"
        mode = {"dryrun": "offline", "run": "online"}.get(mode, mode)
        if mode not in ("online", "offline", "disabled"):
            raise DovetailError(f"WANDB_MODE must be online, offline or disabled to track with W&B, got {mode!r}.")
        server = os.environ.get("WANDB_BASE_URL") or _settings().get("base_url") or _SERVER
        folder = str(Path(os.environ.get("WANDB_DIR") or ".").expanduser().absolute())
        where = {"server": server} if mode == "online" else {"folder": folder}
        return f"{place}?{urlencode({'mode': mode, **where})}"

    @classmethod
    def check(cls, place: str) -> None:
        """Refuse a folder that cannot be written, and a server without a key: nobody is there to be asked for one."""
        _, mode, where = _split(place)
        check_folder(Path(os.environ.get("WANDB_DIR") or "."))
        if mode == "online" and not _has_key(where):
            raise DovetailError(
                f"W&B must have a key for {where}; none was found. Run 'wandb login', set WANDB_API_KEY, or track "
                f"offline with WANDB_MODE=offline and send it later with 'wandb sync'."
            )

    def __init__(self, place: str) -> None:
        self._project, self._mode, self._where = _split(place)
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.pop("WANDB_SERVICE", None)  # of whoever started this, and uses W&B on its own
        import wandb

        self._wandb: Any = wandb
        self._runs: dict[str, Any] = {}

    def open(self, run: RunFacts, state: str, *, metrics: Iterable[str]) -> OpenedRun:
        """Begin the run, or resume it; what it holds ends with its last step."""
        self.forget(run)
        held = _last_step(Path(self._where), run.key) if self._mode == "offline" else None
        entity, _, project = self._project.rpartition("/")
        found = self._runs[run.key] = self._wandb.init(
            project=project,
            entity=entity or None,
            id=run.key,
            name=run.name,
            group=run.workload,
            job_type="task" if run.parent else "workload",
            config=dict(run.parameters),
            mode=self._mode,
            dir=self._where if self._mode == "offline" else None,
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            # Nothing of this process is of interest: not what it prints, nor how busy the machine is beside it.
            settings=self._wandb.Settings(
                silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, save_code=False
            ),
        )
        if self._mode == "online":
            held = found.step - 1
        return OpenedRun(state="begun", held={} if held is None else dict.fromkeys(metrics, held))

    def send(self, run: RunFacts, state: str, points: Sequence[Point], *, facts: bool) -> str:
        """Log a row for each step, then status and files."""
        found = self._runs[run.key]
        rows: dict[int, dict[str, float]] = {}
        for point in points:
            rows.setdefault(point.step, {})[point.name] = point.value
        for step, row in rows.items():
            found.log(row, step=step, commit=True)
        if facts:
            found.summary.update({name.replace(".", "/"): text for name, text in run.tags.items()})
            for name, text in run.texts.items():  # what lies in its folder is uploaded with it
                (Path(found.dir) / name).write_text(text)
        if rows and self._mode != "disabled":
            _ = found.step  # asks W&B's own process, which answers once it has taken in all of that
        return state

    def send_model(self, run: RunFacts, state: str, folder: Path) -> None:
        """Log the model's files as an artifact; the same files are no new version of it."""
        artifact = self._wandb.Artifact(f"model-{run.subject}", type="model", metadata=dict(run.tags))
        artifact.add_dir(str(folder))
        self._runs[run.key].log_artifact(artifact)

    def forget(self, run: RunFacts) -> None:
        """Finish the run, for now or for good, which waits until what it holds is uploaded."""
        found = self._runs.pop(run.key, None)
        if found is not None:
            found.finish(exit_code=int(run.status in ("failed", "cancelled")))

    def close(self) -> None:
        """Finish all runs for now, which waits until what they hold is uploaded."""
        while self._runs:
            self._runs.popitem()[1].finish()


def _split(place: str) -> tuple[str, str, str]:
    """Project, mode, and server or folder of a resolved place."""
    project, _, query = place.partition("?")
    given = {name: values[0] for name, values in parse_qs(query).items()}
    return project, given["mode"], given.get("server") or given.get("folder", ".")


def _settings() -> dict[str, str]:
    """What `wandb offline` and `wandb login` have written for this folder and this user; the folder's counts more."""
    parser = configparser.ConfigParser(default_section="default")
    here = Path(os.environ.get("WANDB_DIR") or ".") / "wandb" / "settings"
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):
        parser.read([Path.home() / ".config" / "wandb" / "settings", here])
    return dict(parser.defaults())


def _has_key(server: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        file = os.environ.get("NETRC")
        return netrc.netrc(file).authenticators(urlsplit(server).hostname or "") is not None
    return False


def _last_step(folder: Path, key: str) -> int | None:
    """The last step that the files of an offline run hold, -1 where they hold none; None where there are no files."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when it is imported

    files = list((folder / "wandb").glob(f"offline-run-*-{key}/run-{key}.wandb"))
    steps = [
        record.history.step.num
        for file in files
        for content in _records(file.read_bytes())
        if (record := Record.FromString(content)).HasField("history")
    ]
    return max(steps, default=-1) if files else None


def _records(content: bytes) -> Iterator[bytes]:
    """The whole records of a file of W&B; one that a killed process left half is none."""
    at, pieces = _HEADER_BYTES, b""
    while at + _HEADER_BYTES <= len(content):
        if _BLOCK_BYTES - at % _BLOCK_BYTES < _HEADER_BYTES:  # what is left of a block and has no room for a piece
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        piece, at = content[at + _HEADER_BYTES : at + _HEADER_BYTES + size], at + _HEADER_BYTES + size
        if len(piece) < size or not kind:
            return
        pieces = piece if kind in (_WHOLE, _FIRST) else pieces + piece
        if kind in (_WHOLE, _LAST):
            yield pieces
