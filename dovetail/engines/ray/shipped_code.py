"""Which code travels to the nodes of a Ray cluster, and where it is found there.

A shipment is a folder that Ray's runtime environment carries to each node: Dovetail itself, and for every folder that
holds programs the files that they reach there. On a node a program is taken from its own path if that holds the same
bytes (a shared file system, this machine), because data may lie beside it, and from the shipment otherwise. Data is
not shipped: programs find it by path, or fetch it.
"""

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dovetail
from dovetail.describe.programs import PICKLED, module_file
from dovetail.describe.source_digest import find_reached_files
from dovetail.vocabulary import DovetailError, Program

MANIFEST = "shipment.json"
# How often a copy is tried, and the seconds between: unpacking takes less than one.
_TRIES, _PAUSE_SECONDS = 40, 0.25


def pack(programs: Iterable[Program], folder: Path) -> None:
    """Fill `folder` with Dovetail and the code of these programs. Pickled ones lie in the store, which is shared."""
    tool = Path(dovetail.__file__).parent
    shutil.copytree(tool, folder / "dovetail", ignore=shutil.ignore_patterns("__pycache__"))
    roots: dict[str, dict[str, str]] = {}
    for program in programs:
        located = None if program.reference.startswith(PICKLED) else _locate(program)
        if located is None:
            continue
        file, root = located
        files = roots.setdefault(str(root), {})
        for path in find_reached_files(file, program.function, root=root):
            if path.is_relative_to(root):
                files[str(path.relative_to(root))] = _digest(path)
    for number, (root_name, files) in enumerate(roots.items()):
        for name in files:
            target = folder / f"code-{number}" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(root_name, name), target)
    entries = [
        {"root": root, "folder": f"code-{number}", "files": files} for number, (root, files) in enumerate(roots.items())
    ]
    whole = {str(path.relative_to(folder)): _digest(path) for path in folder.rglob("*") if path.is_file()}
    (folder / MANIFEST).write_text(json.dumps({"entries": entries, "whole": whole}))


def take(folder: Path, *, inside: Path) -> Path:
    """A whole copy of the shipment in `folder`, in a folder `inside`, for whoever calls to keep and to remove.

    Others may be able to write where Ray has unpacked it. And Ray removes what it unpacked and unpacks it again, under
    the feet of those that use it, when another node of the same machine is to have the same code: a process there has
    no folder to be in any more, and its imports find half.
    """
    for _ in range(_TRIES):
        own = Path(tempfile.mkdtemp(prefix="dovetail-", dir=inside))
        with contextlib.suppress(OSError, ValueError, shutil.Error):  # it changes while it is copied
            shutil.copytree(folder, own, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            if _holds(own, json.loads((own / MANIFEST).read_text())["whole"]):
                return own
        shutil.rmtree(own, ignore_errors=True)
        time.sleep(_PAUSE_SECONDS)
    raise DovetailError(
        f"the code of a run must come to this node whole; after {_TRIES * _PAUSE_SECONDS:.0f} s files are still "
        f"missing from {folder}, or others. Look for a full disk there."
    )


def import_from(own: Path, *, instead_of: Path) -> None:
    """Import, here and in every process started from here, from `own` what would be imported from another folder."""
    there = instead_of.resolve()
    sys.path[:] = [str(own) if Path(path).resolve() == there else path for path in sys.path]


class Shipment:
    """The code that came to a node, in `folder`; empty where none did."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, str] = {}
        self.folder = folder
        if (folder / MANIFEST).is_file():
            for entry in json.loads((folder / MANIFEST).read_text())["entries"]:
                here = _holds(Path(entry["root"]), entry["files"])
                self._places[entry["root"]] = entry["root"] if here else str(folder / entry["folder"])

    def relocate(self, order: dict[str, Any]) -> None:
        """Let an order, as JSON, name its programs' files where they are on this node.

        A task's identity does not hang on the folder of its program.
        """
        for member in order["members"]:
            program = member["task"]["program"]
            place, _, function = program["reference"].rpartition(":")
            folder, slash, name = place.rpartition("/")
            if slash and folder in self._places:
                program["reference"] = f"{self._places[folder]}/{name}:{function}"
            program["root"] = self._places.get(program["root"], program["root"])


def _locate(program: Program) -> tuple[Path, Path] | None:
    """A program's file, and the folder from which its imports are found; None for an installed one."""
    place = program.reference.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve(), Path(place).resolve().parent
    file = module_file(place, root=program.root)
    return None if file is None else (file, Path(program.root))


def _holds(root: Path, files: dict[str, str]) -> bool:
    return all((root / name).is_file() and _digest(root / name) == digest for name, digest in files.items())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
