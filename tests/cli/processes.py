"""The real command in real processes, and how to read what it left."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.store import Store
from dovetail.vocabulary import Event

COMMAND = Path(sys.executable).with_name("dovetail")
HOME = ".dovetail"
# Wide enough that no table folds a word that a test looks for.
ENVIRONMENT = {**os.environ, "COLUMNS": "1000", "TERM": "dumb"}
PATIENCE_SECONDS = 400


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def dovetail(*arguments: str | Path, cwd: Path, **more: Any) -> Finished:
    """Run a command to its end."""
    process = begin(*arguments, cwd=cwd, **more)
    return end(process)


def in_process(*words: str, cwd: Path) -> Finished:
    """A command, without the second that a process takes to begin: for those that start nothing themselves."""
    with contextlib.chdir(cwd):
        found = CliRunner().invoke(app, words)
    return Finished(found.exit_code, found.stdout, found.stderr)


def begin(*arguments: str | Path, cwd: Path, **more: Any) -> "subprocess.Popen[str]":
    """Start a command; give it to `end` in any case."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT, **more}
    return subprocess.Popen([str(COMMAND), *map(str, arguments)], cwd=cwd, **options)


def end(process: "subprocess.Popen[str]") -> Finished:
    """Wait for a command that `begin` started; kill it where it hangs."""
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the command hangs; it wrote:\n{out}\n{err}") from None
    return Finished(process.returncode, out, err)


def until(holds: Callable[[], Any], *, what: str) -> Any:
    """Poll until `holds` gives something true."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up_at:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} never came to pass")


def write(folder: Path, **files: str) -> Path:
    """Write Python files by name into a folder."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def rows(cwd: Path, store: str = HOME) -> dict[str, dict[str, Any]]:
    """What `dovetail show --json` says of each task."""
    found = in_process("show", "--json", "--store", str(store), cwd=cwd)
    assert found.code == 0, found.err
    return {row["task"]: row for row in found.json()["tasks"]}


def events(cwd: Path, name: str, *kinds: str, store: str = HOME) -> list[Event]:
    """The events of the task of this name, those of an edited predecessor included."""
    with Store(cwd / store) as opened:
        identities = {task.identity for _, task in opened.tasks() if task.name == name}
        return [e for _, e in opened.events() if e.task in identities and (not kinds or e.kind in kinds)]


def spans(cwd: Path, name: str) -> list[tuple[int, int]]:
    """From which step to which each attempt of a task was to go."""
    return [(event.step, event.until) for event in events(cwd, name, "started")]
